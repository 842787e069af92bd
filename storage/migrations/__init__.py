"""Every change of the schema since the first, run by Alembic. `storage.schema` decides when."""
