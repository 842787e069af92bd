"""One module a version of the schema, named by its number."""
