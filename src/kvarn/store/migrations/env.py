"""Alembic's entry point: runs revisions on the connection that `kvarn.store.migrate` hands over."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"], transactional_ddl=True)
context.run_migrations()
