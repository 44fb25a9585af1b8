"""Sessions as an engine knows them: opaque ids, and hints that are numbers."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from kvarn.wire.message import Message


class SessionTurn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Session of which a request is a turn. The ids are digests: of the tenant and the client's own name of it."""

    id: bytes
    tree: bytes = b""  # id of the session that started it, or of that one's tree; empty: it is its own tree
    keep_s: float = 0.0  # seconds for which the client hopes to find its KV; a bias, never a lock
    is_last: bool = False  # nothing follows this turn


class SessionEvent(StrEnum):
    CALLED_TOOLS = "called_tools"  # its latest turn has ended with calls of tools
    ENDED = "ended"  # nothing follows
    RETURNS = "returns"  # its next turn comes soon


class SessionNews(Message, frozen=True, kw_only=True):
    """An event of a session between its turns. Unknown sessions are ignored."""

    session: bytes
    event: SessionEvent
    turn: str = ""  # request id of the turn that called tools
