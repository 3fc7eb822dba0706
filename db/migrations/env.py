"""Run Alembic's revisions on the caller's connection and transaction (migrations.upgrade)."""

from alembic import context

from db.schema import VERSION_TABLE, Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    version_table=VERSION_TABLE,
    transactional_ddl=True,
)
context.run_migrations()
