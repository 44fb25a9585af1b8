"""Several servers of one PostgreSQL: the first that takes the connection is used, so a failover needs no change of the
configuration. Imported only where PostgreSQL is used: its driver takes time to load."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Any

import asyncpg

from kvarn.store.outages import cause_of, is_away_state


async def connect_first(
    *,
    host: str | Sequence[str] | None = None,
    port: int | Sequence[int] | None = None,
    timeout: float,
    prefer_writes: bool,
    **options: Any,
) -> Any:
    """Connect to the first host, in the order in which they are named, that takes the connection. As asyncpg does by
    itself, except that one that hangs, starts or stops leaves the others their time.

    Args:
        host: One, or several.
        port: Theirs.
        timeout: Seconds for all.
        prefer_writes: Whether of several one that takes writes goes before one that does not.
        options: asyncpg's. `target_session_attrs` in its DSN says what a server must be.

    Returns:
        asyncpg's connection.

    Raises:
        OSError: None takes it now.
        PostgresError: One refuses it for good; the others are not asked.
    """
    hosts = [host] if host is None or isinstance(host, str) else list(host)
    ports = [port] * len(hosts) if port is None or isinstance(port, int) else list(port)
    places = list(zip(hosts, ports, strict=True))
    prefer_writes = prefer_writes and len(places) > 1
    wanted = {"target_session_attrs": "read-write"} if prefer_writes else {}
    each = timeout / (len(places) + prefer_writes)
    read_only: list[tuple[str | None, int | None]] = []
    failures: list[str] = []
    for name, number in places:
        try:
            return await asyncpg.connect(host=name, port=number, timeout=each, **wanted, **options)
        except asyncpg.TargetServerAttributeNotMatched as error:
            read_only.append((name, number))
            failures.append(f"{name}: {cause_of(error)}")
        except (OSError, asyncpg.PostgresError) as error:
            if len(places) == 1 or not _may_pass(error):
                raise
            failures.append(f"{name}: {cause_of(error)}")
    if prefer_writes and read_only:
        name, number = read_only[0]
        return await asyncpg.connect(host=name, port=number, timeout=each, **options)
    raise ConnectionError("; ".join(failures))


def _may_pass(error: Exception) -> bool:
    if isinstance(error, OSError):
        return not isinstance(error, ssl.SSLCertVerificationError)
    return is_away_state(error)
