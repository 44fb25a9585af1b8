"""Generators of conversations: single requests, chats of a few turns, agents with tools and sub-agents."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice

import msgspec

from kvarn.traffic.conversation import Conversation, ConversationTurn, Traffic
from kvarn.traffic.distributions import Distribution, Fixed, LogNormal, tokens
from kvarn.traffic.draws import Draws
from kvarn.traffic.workload import Segment

_BLOCK = 1024
_PROMPTS, _OUTPUTS, _TURNS, _GAPS, _KINDS, _AGENTS = range(10, 16)  # streams of draws
SHARED_KEYS = 1 << 32
"""Segment keys from here on name what conversations share; each conversation's own lie below."""


def single_requests(times: Iterator[float], prompt: Distribution, output: Distribution, seed: int) -> Traffic:
    """Requests that have nothing in common."""
    prompts, outputs, keys = Draws(seed, _PROMPTS), Draws(seed, _OUTPUTS), count(1)
    while moments := list(islice(times, _BLOCK)):
        lengths = zip(tokens(prompt, prompts, _BLOCK), tokens(output, outputs, _BLOCK), strict=True)
        for moment, (length, answer) in zip(moments, lengths, strict=False):
            turn = ConversationTurn(segments=(Segment(next(keys), length),), output_tokens=answer)
            yield Conversation(begins_s=moment, turns=(turn,))


class SubagentShape(msgspec.Struct, frozen=True, kw_only=True):
    """Sub-agents of a session."""

    session_share: float
    """Sessions that have any."""
    starts: Distribution
    """Turns of such a session that start some."""
    at_once: Distribution
    """Sub-agents that one turn starts."""
    turns: Distribution
    first_tokens: Distribution
    """Prompt of their own, after the system prompt."""


class SessionShape(msgspec.Struct, frozen=True, kw_only=True):
    """Sessions whose prompts grow from turn to turn: what went before, the answer to it, and what is new."""

    turns: Distribution
    system_tokens: int
    """Tokens that all sessions of a kind begin with."""
    kinds: int = 1
    """System prompts that there are."""
    first_tokens: Distribution
    """Tokens of the first prompt after the system prompt."""
    new_tokens: Distribution
    """Tokens that each further turn brings: a tool's result, or what a person writes."""
    output_tokens: Distribution
    tool_share: float = 0.0
    """Turns whose answer ends with a call of a tool."""
    tool_s: Distribution = Fixed(0.0)
    """Seconds of a tool's run."""
    person_s: Distribution = LogNormal(60.0, 1.0, high=1200.0)
    """Seconds of a person's pause, after a turn that calls no tool."""
    max_context: int = 1 << 62
    """A prompt and its answer that would be longer are replaced by a summary behind the system prompt."""
    summary_tokens: Distribution = Fixed(4000)
    subagents: SubagentShape | None = None


def sessions(times: Iterator[float], shape: SessionShape, seed: int, name: str) -> Traffic:
    """One session at each of the times. Their names are `name` and a number."""
    writer = _SessionWriter(shape, seed)
    for number, moment in enumerate(times):
        yield writer.session(moment, f"{name}-{number}")


class _SessionWriter:
    def __init__(self, shape: SessionShape, seed: int) -> None:
        self._shape = shape
        self._prompts, self._outputs, self._turns = Draws(seed, _PROMPTS), Draws(seed, _OUTPUTS), Draws(seed, _TURNS)
        self._gaps, self._kinds, self._agents = Draws(seed, _GAPS), Draws(seed, _KINDS), Draws(seed, _AGENTS)
        self._keys = count(1)

    def session(self, begins_s: float, name: str) -> Conversation:
        shape = self._shape
        kind = int(self._kinds.uniform(1)[0] * shape.kinds)
        count_turns = tokens(shape.turns, self._turns, 1)[0]
        starts = self._starts(count_turns)
        turns = self._written(kind, count_turns, shape.first_tokens, starts, name)
        return Conversation(begins_s=begins_s, turns=turns, session=name)

    def _starts(self, turns: int) -> dict[int, int]:
        """Turns that start sub-agents, and how many."""
        agents = self._shape.subagents
        if agents is None or self._agents.uniform(1)[0] >= agents.session_share:
            return {}
        number = tokens(agents.starts, self._agents, 1)[0]
        places = (self._agents.uniform(number) * turns).tolist()
        at_once = tokens(agents.at_once, self._agents, number)
        return {int(place): started for place, started in zip(places, at_once, strict=True)}

    def _written(
        self, kind: int, count_turns: int, first: Distribution, starts: dict[int, int], name: str
    ) -> tuple[ConversationTurn, ...]:
        shape, system = self._shape, self._system(kind)
        news = tokens(shape.new_tokens, self._prompts, count_turns)
        news[0] = tokens(first, self._prompts, 1)[0]
        outputs = tokens(shape.output_tokens, self._outputs, count_turns)
        calls = [call and place + 1 < count_turns for place, call in enumerate(self._calls(count_turns))]
        gaps = self._pauses(calls)
        context, length, turns = system, shape.system_tokens, list[ConversationTurn]()
        for place in range(count_turns):
            if length + news[place] + outputs[place] > shape.max_context and place:
                summary = tokens(shape.summary_tokens, self._prompts, 1)[0]
                context, length = (*system, self._fresh(summary)), shape.system_tokens + summary
            context = (*context, self._fresh(news[place]))
            answer = self._fresh(outputs[place])
            turns.append(
                ConversationTurn(
                    segments=context,
                    output_tokens=outputs[place],
                    gap_s=gaps[place - 1] if place else 0.0,
                    is_tool_call=calls[place],
                    answer_key=answer.key if place + 1 < count_turns else None,
                    subagents=tuple(self._subagent(kind, f"{name}/{place}-{n}") for n in range(starts.get(place, 0))),
                )
            )
            context, length = (*context, answer), length + news[place] + outputs[place]
        return tuple(turns)

    def _subagent(self, kind: int, name: str) -> Conversation:
        agents = self._shape.subagents
        assert agents is not None
        count_turns = tokens(agents.turns, self._turns, 1)[0]
        return Conversation(
            begins_s=0.0, turns=self._written(kind, count_turns, agents.first_tokens, {}, name), session=name
        )

    def _calls(self, turns: int) -> list[bool]:
        found: list[bool] = (self._kinds.uniform(turns) < self._shape.tool_share).tolist()
        return found

    def _pauses(self, calls: list[bool]) -> list[float]:
        tools = self._shape.tool_s.numbers(self._gaps, len(calls)).tolist()
        persons = self._shape.person_s.numbers(self._gaps, len(calls)).tolist()
        return [tool if call else person for call, tool, person in zip(calls, tools, persons, strict=True)]

    def _system(self, kind: int) -> tuple[Segment, ...]:
        return (Segment(SHARED_KEYS + kind, self._shape.system_tokens),) if self._shape.system_tokens else ()

    def _fresh(self, length: int) -> Segment:
        return Segment(next(self._keys), length)
