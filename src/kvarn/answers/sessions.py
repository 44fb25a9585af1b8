"""Sessions of clients: found in what they send, whatever API and agent, and told to the engine as digests and numbers.

A hint is a bias. One that cannot be read is as good as none.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from kvarn.store.owner import Principal
from kvarn.wire.anthropic.blocks import CacheControl
from kvarn.wire.anthropic.messages import MessagesPrompt
from kvarn.wire.openai.chat.messages import TextPart
from kvarn.wire.openai.chat.request import ChatCompletionRequest
from kvarn.wire.openai.common import SamplingFields
from kvarn.wire.openai.sessions import AgentHint
from kvarn.wire.sessions import SessionTurn

if TYPE_CHECKING:
    from kvarn.answers.record import RequestRecord

_NAMES = (b"x-kvarn-session", b"x-session-id", b"session-id", b"x-session-affinity")
"""Headers with a session's id, ours first: opencode and Codex send one of the others."""
_PARENT = b"x-kvarn-parent-session"
_ENDS = b"x-kvarn-session-end"
_MAX_NAME = 256
_MAX_KEEP_S = 3600.0
_ANTHROPIC_TTL_S = 300.0  # of a `cache_control` without one
_RETENTION_S = {"in_memory": 300.0, "24h": 86400.0}
_LAST_MESSAGES = 2  # those that may carry the latest mark of a cached prompt
_DURATION = re.compile(r"(\d{1,6})([smhd])")
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_USER_ID = re.compile(r".*_session_([0-9a-fA-F-]{8,64})")


@dataclass(frozen=True, slots=True)
class SessionHints:
    """Hints of a client about the session that a request is a turn of."""

    name: str = ""  # its own; empty: none is named
    parent: str = ""  # name of the session that started it
    keep_s: float = 0.0  # seconds for which it hopes to find its KV
    is_last: bool = False  # nothing follows
    otherwise: str = ""
    """Name that the server gives it where the client gives none: the chain of a response, the turns of one request."""

    def or_else(self, other: SessionHints) -> SessionHints:
        """These, completed with others."""
        return SessionHints(
            self.name or other.name,
            self.parent or other.parent,
            max(self.keep_s, other.keep_s),
            self.is_last or other.is_last,
            self.otherwise or other.otherwise,
        )


NO_HINTS = SessionHints()


def hints_of_headers(headers: Iterable[tuple[bytes, bytes]]) -> SessionHints:
    found = {name: value for name, value in headers if name in _NAMES or name in (_PARENT, _ENDS)}
    if not found:
        return NO_HINTS
    name = next((_name(found[each].decode("latin-1")) for each in _NAMES if each in found), "")
    parent = _name(found.get(_PARENT, b"").decode("latin-1"))
    return SessionHints(name, parent, is_last=found.get(_ENDS, b"").lower() in (b"true", b"1"))


def hints_of_chat(request: ChatCompletionRequest) -> SessionHints:
    options = request.prompt_cache_options or {}
    marks = [
        part.cache_control.get("ttl")
        for message in request.messages[-_LAST_MESSAGES:]
        if isinstance(message.content, list)
        for part in message.content
        if isinstance(part, TextPart) and part.cache_control is not None
    ]
    keep_s = max(
        _seconds(options.get("ttl")),
        _RETENTION_S.get(request.prompt_cache_retention or "", 0.0),
        max((_seconds(ttl) or _ANTHROPIC_TTL_S for ttl in marks), default=0.0),
    )
    own = hints_of_fields(request)
    return own.or_else(SessionHints(_name(request.prompt_cache_key or ""), keep_s=keep_s))


def hints_of_fields(request: SamplingFields) -> SessionHints:
    directives = request.retention_directives or ()
    keep_s = max((each.duration or 0.0 for each in directives if each.priority), default=0.0)
    return _of_agent(request.agent_hint).or_else(SessionHints(keep_s=keep_s))


def hints_of_messages(request: MessagesPrompt) -> SessionHints:
    """Hints of Anthropic's API: marks for the cache, and the session that Claude Code writes into the user's id."""
    marks: list[CacheControl | None] = [request.cache_control]
    marks += [getattr(tool, "cache_control", None) for tool in request.tools or ()]
    for content in (request.system, *(message.content for message in request.messages[-_LAST_MESSAGES:])):
        if isinstance(content, list):
            marks += [getattr(block, "cache_control", None) for block in content]
    keep_s = max((_seconds(mark.ttl) or _ANTHROPIC_TTL_S for mark in marks if mark is not None), default=0.0)
    user = request.metadata.user_id if request.metadata is not None else None
    return _of_agent(request.agent_hint).or_else(SessionHints(_session_in(user or ""), keep_s=keep_s))


def turn_of(record: RequestRecord) -> SessionTurn | None:
    """The session as the engine knows it; None: the request names none."""
    hints = record.session
    name = record.choice.session or hints.otherwise
    if not name:
        return None
    tree = hints.parent
    return SessionTurn(
        id=session_id(record.principal, name),
        tree=session_id(record.principal, tree) if tree else b"",
        keep_s=min(hints.keep_s, _MAX_KEEP_S),
        is_last=hints.is_last,
    )


def session_id(principal: Principal, name: str) -> bytes:
    """Digest of a session's name, of this project alone."""
    owner = principal.owner
    whole = "\0".join((owner.organization_id, owner.project_id, name)).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(whole, digest_size=16).digest()


def take_hints(record: RequestRecord, hints: SessionHints) -> None:
    """Complete what is known of a request's session."""
    record.session = record.session.or_else(hints)
    record.choice.session = record.choice.session or record.session.name


def calls_tools(finish_reasons: Sequence[str]) -> bool:
    return any(reason in ("tool_calls", "function_call") for reason in finish_reasons)


def _of_agent(hint: AgentHint | None) -> SessionHints:
    if hint is None:
        return NO_HINTS
    keep_s = 0.0 if hint.cache_control is None else hint.cache_control.ttl
    return SessionHints(_name(hint.session_id or ""), _name(hint.parent_session_id or ""), keep_s, hint.is_last)


def _name(text: str) -> str:
    return text if len(text) <= _MAX_NAME else ""


def _seconds(ttl: object) -> float:
    """Seconds of a text like `5m`; 0: it is none."""
    match = _DURATION.fullmatch(ttl) if isinstance(ttl, str) else None
    return 0.0 if match is None else int(match[1]) * _UNITS_S[match[2]]


def _session_in(user_id: str) -> str:
    """The session in the user's id: JSON with a `session_id`, or `user_…_session_…` as older versions have it."""
    if user_id.startswith("{"):
        try:
            data = msgspec.json.decode(user_id)
        except (msgspec.DecodeError, RecursionError):
            return ""
        found = data.get("session_id") if isinstance(data, dict) else None
        return _name(found) if isinstance(found, str) else ""
    match = _USER_ID.fullmatch(user_id)
    return "" if match is None else match[1]
