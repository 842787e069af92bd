"""The database: tables, one writer, queries. The only package that uses SQLAlchemy."""
