"""Traffic of requests that a server has recorded: lengths, times, sessions; never texts or names.

The ledger and the list of kept requests say how many of a prompt's tokens were cached, and not which. So what prompts
share is a model: within a session a prompt begins with the one before it and its answer, where it is long enough for
both, and else with as much of them as was cached; outside a session the cached tokens are a prefix that all requests of
the tenant to the model have in common. In a cache that holds everything such traffic hits as the recorded one did, or
more within sessions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from itertools import count

import msgspec

from kvarn.traffic.conversation import Conversation, ConversationTurn, Traffic
from kvarn.traffic.workload import Segment, cut


class RecordedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of a request that is over."""

    started_s: float
    took_s: float
    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    tenant: str = ""
    session: str = ""
    model: str = ""


class Pseudonyms:
    """Names that stand for others: the same for the same name, and with another salt another."""

    def __init__(self, salt: bytes) -> None:
        self._salt = hashlib.blake2b(salt).digest()

    def of(self, kind: str, name: str) -> str:
        """A kind and 12 hexadecimal digits; empty for no name."""
        if not name:
            return ""
        digest = hashlib.blake2b(f"{kind}\0{name}".encode(), digest_size=6, key=self._salt).hexdigest()
        return f"{kind}-{digest}"


def recorded(requests: Iterable[RecordedRequest], pseudonyms: Pseudonyms) -> Traffic:
    """The conversations of requests that were answered, sorted by `started_s`; the first is at 0 s."""
    sessions: dict[tuple[str, str, str], list[RecordedRequest]] = {}
    firsts: list[RecordedRequest | tuple[str, str, str]] = []
    since_s: float | None = None
    for each in requests:
        since_s = each.started_s if since_s is None else since_s
        key = (each.tenant, each.model, each.session)
        if not each.session:
            firsts.append(each)
        elif key in sessions:
            sessions[key].append(each)
        else:
            sessions[key] = [each]
            firsts.append(key)
    writer = _Writer(pseudonyms, since_s or 0.0)
    return (writer.conversation(sessions[each] if isinstance(each, tuple) else [each]) for each in firsts)


class _Writer:
    def __init__(self, pseudonyms: Pseudonyms, since_s: float) -> None:
        self._pseudonyms, self._since_s = pseudonyms, since_s
        self._keys, self._shared = count(1), dict[tuple[str, str], int]()

    def conversation(self, requests: list[RecordedRequest]) -> Conversation:
        first = requests[0]
        return Conversation(
            begins_s=max(0.0, first.started_s - self._since_s),
            turns=tuple(self._turns(requests)),
            tenant=self._pseudonyms.of("tenant", first.tenant),
            session=self._pseudonyms.of("session", f"{first.tenant}\0{first.session}" if first.session else ""),
            model=first.model,
        )

    def _turns(self, requests: list[RecordedRequest]) -> Iterator[ConversationTurn]:
        shared = self._shared.setdefault((requests[0].tenant, requests[0].model), next(self._keys))
        context, ends_s = tuple[Segment, ...](), 0.0
        for place, each in enumerate(requests):
            length = max(1, each.input_tokens)
            cached = min(each.cached_tokens, length)
            before: tuple[Segment, ...] = ()
            if not place:
                before = cut((Segment(shared, cached),), cached)
            elif sum(segment.length for segment in context) <= length:
                before = context
            else:
                before = cut(context, cached)
            new = length - sum(segment.length for segment in before)
            segments = (*before, Segment(next(self._keys), new)) if new else before
            answer = Segment(next(self._keys), max(1, each.output_tokens))
            yield ConversationTurn(
                segments=segments,
                output_tokens=answer.length,
                gap_s=max(0.0, each.started_s - ends_s) if place else 0.0,
                took_s=each.took_s,
                answer_key=answer.key if place + 1 < len(requests) else None,
            )
            context, ends_s = (*segments, answer), max(ends_s, each.started_s + each.took_s)
