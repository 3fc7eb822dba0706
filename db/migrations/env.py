"""Alembic runs this file; the connection and its transaction belong to the caller (migrations.upgrade)."""

from alembic import context

from db.schema import VERSION_TABLE, Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    version_table=VERSION_TABLE,
    transactional_ddl=True,
)
context.run_migrations()
