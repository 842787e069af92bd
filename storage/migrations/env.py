"""Alembic's entry: it is run on the connection that `storage.schema` hands over, in its transaction."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], target_metadata=None)
context.run_migrations()
