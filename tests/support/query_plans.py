"""How a database goes about what a store asks of it, reports included."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import Engine, event, text

from kvarn.store.engine import Store


@asynccontextmanager
async def query_plans(store: Store, table: str) -> AsyncGenerator[list[str], None]:
    """Afterwards: the plan of each statement that read `table` within the block, by fresh statistics."""
    asked: list[tuple[str, Any]] = []

    def note(connection: object, cursor: object, statement: str, parameters: Any, *_: object) -> None:
        if statement.startswith("SELECT") and table in statement:
            asked.append((statement, parameters))

    plans: list[str] = []
    async with store.engine.connect() as connection:
        await connection.execute(text("ANALYZE"))
        await connection.commit()
    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield plans
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    explain = "EXPLAIN QUERY PLAN" if store.is_sqlite else "EXPLAIN"
    async with store.engine.connect() as connection:
        for statement, parameters in asked:
            rows = await connection.exec_driver_sql(f"{explain} {statement}", parameters)
            plans.append("\n".join(str(row) for row in rows))
