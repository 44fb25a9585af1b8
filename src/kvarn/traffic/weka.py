"""The format that AIPerf calls Weka: one JSON object a conversation, in a file of lines or one file each.

`requests` has calls (`type` n, or s for streamed) with `t` and `api_time` in seconds, `in`, `out` and `hash_ids`, and
sub-agents (`type` subagent) with `requests` of their own. Sub-agents' times are those of the trace, or count from the
sub-agent's `t`: both are in use. Ids name blocks of `block_size` tokens, within the conversation where `hash_id_scope`
is `local`. The file does not say when conversations begin: all begin at 0 s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from kvarn.traffic.conversation import Conversation, ConversationTurn
from kvarn.traffic.entries import OWN_KEYS, TraceError
from kvarn.traffic.workload import Segment

WEKA_BLOCK = 64
_SCOPE_BITS = 32
MAX_CONVERSATIONS = OWN_KEYS >> _SCOPE_BITS
"""Conversations whose block ids are told apart."""


class WekaRequest(msgspec.Struct, omit_defaults=True, rename={"input": "in"}):
    """A call, or a sub-agent."""

    t: float
    type: str = "n"
    input: int = 0
    out: int = 0
    hash_ids: list[int] = []
    api_time: float | None = None
    stop: str = ""
    model: str = ""
    agent_id: str = ""
    requests: list[WekaRequest] = []

    @property
    def end_s(self) -> float:
        return self.t + max(0.0, self.api_time or 0.0)


class WekaConversation(msgspec.Struct, omit_defaults=True):
    requests: list[WekaRequest]
    id: str = ""
    block_size: int = WEKA_BLOCK
    hash_id_scope: str = "local"
    tenant: str = ""


_decoder = msgspec.json.Decoder(WekaConversation)


def weka_conversation(text: str | bytes, number: int, where: str) -> Conversation:
    """The conversation of a JSON object, the `number`th of the trace (from 0). Raises `TraceError`."""
    try:
        read = _decoder.decode(text)
    except msgspec.MsgspecError as error:
        raise TraceError(f"{where} is not a Weka conversation: {error}") from None
    if number >= MAX_CONVERSATIONS - 1:
        raise TraceError(f"the trace has more than {MAX_CONVERSATIONS - 1} conversations: split it")
    if read.block_size < 1:
        raise TraceError(f"{where} has a block_size below 1")
    reader = _Reader(read, (number + 1) << _SCOPE_BITS if read.hash_id_scope == "local" else 0, number, where)
    name = read.id or f"weka-{number}"
    return Conversation(begins_s=0.0, turns=reader.turns(read.requests, name), session=name, tenant=read.tenant)


class _Reader:
    def __init__(self, read: WekaConversation, scope: int, number: int, where: str) -> None:
        self._block, self._scope, self._where = read.block_size, scope, where
        self._own = OWN_KEYS + (number << _SCOPE_BITS)
        self._segments: dict[tuple[int, int], Segment] = {}

    def turns(self, requests: Sequence[WekaRequest], name: str) -> tuple[ConversationTurn, ...]:
        calls = sorted((each for each in requests if each.type != "subagent"), key=lambda each: each.t)
        if not calls:
            raise TraceError(f"{self._where} has a conversation or sub-agent without calls")
        agents: list[list[WekaRequest]] = [[] for _ in calls]
        for each in requests:
            if each.type == "subagent" and each.requests:
                starts = sum(call.t <= each.t for call in calls)
                agents[max(0, starts - 1)].append(each)
        turns, ready_s = list[ConversationTurn](), calls[0].t
        for place, call in enumerate(calls):
            later_s = calls[place + 1].t if place + 1 < len(calls) else None
            started, next_ready_s = list[Conversation](), call.end_s
            for agent in agents[place]:
                conversation, ends_s = self._agent(
                    agent, call.end_s, f"{name}/{agent.agent_id or len(started)}", later_s
                )
                next_ready_s = max(next_ready_s, ends_s) if conversation.is_awaited else next_ready_s
                started.append(conversation)
            turns.append(
                ConversationTurn(
                    segments=self._prompt(call),
                    output_tokens=max(1, call.out),
                    gap_s=max(0.0, call.t - ready_s),
                    took_s=call.end_s - call.t,
                    is_tool_call=call.stop == "tool_use",
                    subagents=tuple(started),
                )
            )
            ready_s = next_ready_s
        return tuple(turns)

    def _agent(
        self, agent: WekaRequest, after_s: float, name: str, later_s: float | None
    ) -> tuple[Conversation, float]:
        """A sub-agent, and its end on the trace's clock."""
        calls = list(_calls(agent.requests))
        first_s = min((call.t for call in calls), default=agent.t)
        offset = 0.0 if first_s >= agent.t else agent.t
        ends_s = max((call.end_s for call in calls), default=agent.t) + offset
        is_awaited = later_s is not None and later_s >= ends_s
        begins_s = max(0.0, first_s + offset - after_s)
        turns = self.turns(agent.requests, name)
        return Conversation(begins_s=begins_s, turns=turns, session=name, is_awaited=is_awaited), ends_s

    def _prompt(self, call: WekaRequest) -> tuple[Segment, ...]:
        """Its blocks. Ids may end before the prompt does: what is left is the call's own."""
        if call.input < 1 or call.out < 0:
            raise TraceError(
                f"{self._where} has a call at t={call.t:g} with a prompt below 1 token or an answer below 0"
            )
        if not all(0 <= name < 1 << _SCOPE_BITS for name in call.hash_ids):
            raise TraceError(f"{self._where} has a block id that is not from 0 to below {1 << _SCOPE_BITS}")
        if (len(call.hash_ids) - 1) * self._block >= call.input:
            raise TraceError(
                f"{self._where} has a call at t={call.t:g} with {len(call.hash_ids)} blocks of {self._block} tokens, "
                f"too many for a prompt of {call.input}"
            )
        left, segments = call.input, list[Segment]()
        for name in call.hash_ids:
            segments.append(self._segment(self._scope | name, min(left, self._block)))
            left -= self._block
        if left > 0:
            self._own += 1
            segments.append(Segment(self._own, left))
        return tuple(segments)

    def _segment(self, key: int, length: int) -> Segment:
        """The same object for the same block: a long conversation names each many times."""
        return self._segments.setdefault((key, length), Segment(key, length))


def _calls(requests: Sequence[WekaRequest]) -> Iterator[WekaRequest]:
    for each in requests:
        if each.type == "subagent":
            yield from _calls(each.requests)
        else:
            yield each
