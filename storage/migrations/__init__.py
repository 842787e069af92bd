"""Changes of the schema since 0.1.0, run by Alembic when `storage.schema` says so."""
