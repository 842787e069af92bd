"""What is kept: tables, one writer, queries. The only room that knows SQLAlchemy."""
