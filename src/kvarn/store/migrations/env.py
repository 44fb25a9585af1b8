"""Alembic's entry point: runs revisions on the connection that `kvarn.store.migrate` hands over."""

from __future__ import annotations

from typing import Literal

from alembic import context

from kvarn.store.models import Base
from kvarn.store.models.base import Json

connection = context.config.attributes["connection"]


def render_item(kind: str, item: object, _: object) -> str | Literal[False]:
    """How a new revision writes the type of JSON columns."""
    return "Json" if kind == "type" and item is Json else False


context.configure(
    connection=connection,
    target_metadata=Base.metadata,
    render_as_batch=connection.dialect.name == "sqlite",  # SQLite alters a table by copying it
    render_item=render_item,
    transactional_ddl=True,
)
context.run_migrations()
