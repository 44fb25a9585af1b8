"""Agents of a cause: the turns in the steps during a time, and words for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from kvarn.explain.words import count, joined
from kvarn.wire.step_records import StepRecord, StepRow, StepTurn, TurnSteps

NameOf = Callable[[str], str]
"""Name of a tenant, as who reads the explanation may see it."""
Weigh = Callable[[StepTurn, StepRow, StepRecord], float]

_SMALL = 0.1
"""Share of its tenant's weight below which a turn is not counted."""
_MOST = 0.8
"""Share of all weight from which on a tenant's turns are named alone."""


@dataclass(slots=True)
class Agent:
    """A turn that stood in the way."""

    turn: StepTurn
    weight: float = 0.0
    prompt_weight: float = 0.0
    """Part of it that parts of its prompt have."""


def by_time(turn: StepTurn, row: StepRow, record: StepRecord) -> float:
    return record.us


def by_memory(turn: StepTurn, row: StepRow, record: StepRecord) -> float:
    """KV that a turn holds, about: its prompt, for as long as the step took."""
    return record.us * (turn.prompt_tokens + row.output_tokens)


def by_tokens(turn: StepTurn, row: StepRow, record: StepRecord) -> float:
    return row.computed_tokens


def by_prompts(turn: StepTurn, row: StepRow, record: StepRecord) -> float:
    return row.computed_tokens if is_chunk(row, record) else 0.0


def is_chunk(row: StepRow, record: StepRecord) -> bool:
    """Whether a row computed a part of a prompt: several tokens, and no more were drawn than one."""
    return row.computed_tokens > 1 and row.output_tokens <= 1 and record.prefill_tokens >= row.computed_tokens


def agents_of(steps: TurnSteps, records: Iterable[StepRecord], weigh: Weigh) -> list[Agent]:
    """The other turns in these steps, the heaviest first."""
    found: dict[int, Agent] = {}
    for record in records:
        for row in record.rows:
            if row.turn == 0:
                continue
            turn = steps.turns[row.turn]
            if weight := weigh(turn, row, record):
                agent = found.setdefault(row.turn, Agent(turn))
                agent.weight += weight
                agent.prompt_weight += weight if is_chunk(row, record) else 0.0
    return sorted(found.values(), key=lambda agent: -agent.weight)


def named(agents: Sequence[Agent], name_of: NameOf) -> str:
    """Words for turns: `two 6,200-token prompts of globex`. Empty where there are none."""
    tenants: dict[str, list[Agent]] = {}
    for agent in agents:
        tenants.setdefault(agent.turn.tenant, []).append(agent)
    if not tenants:
        return ""
    total = sum(agent.weight for agent in agents)
    ranked = sorted(tenants.items(), key=lambda item: -sum(agent.weight for agent in item[1]))
    tenant, heaviest = ranked[0]
    weight = sum(agent.weight for agent in heaviest)
    if len(ranked) > 1 and weight < _MOST * total:
        (other, others) = ranked[1]
        return joined(_turns(heaviest, name_of(tenant)), _turns(others, name_of(other)))
    return _turns(heaviest, name_of(tenant))


def _turns(agents: Sequence[Agent], name: str) -> str:
    weight = sum(agent.weight for agent in agents)
    large = [agent for agent in agents if agent.weight >= _SMALL * weight] or list(agents)
    are_prompts = sum(agent.prompt_weight for agent in large) > sum(agent.weight for agent in large) / 2
    tokens = [agent.turn.prompt_tokens for agent in large]
    owner = f" of {name}" if name else ""
    if not are_prompts:
        return count(len(large), "answer") + owner
    about = median(tokens)
    if all(abs(each - about) <= 0.1 * about for each in tokens):
        return count(len(large), "prompt", f"{round(about):,}-token ") + owner
    return f"{count(len(large), 'prompt')}{owner} ({sum(tokens):,} tokens)"
