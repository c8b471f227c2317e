"""Alembic's environment: runs on the connection that ``migrate`` passes."""

from alembic import context

from scheduler_service.store import schema

context.configure(
    connection=context.config.attributes['connection'],
    target_metadata=schema.metadata,
    render_as_batch=True,
    compare_type=True,
)
with context.begin_transaction():
    context.run_migrations()
