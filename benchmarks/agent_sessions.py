"""Traffic of agents and of strangers, made from seeds: what clients will do, whatever the engine's speed.

Agents are those of `kvarn bench --traffic agentic` (`kvarn.traffic.presets`), made smaller; they start no sub-agents.
"""

from __future__ import annotations

import random
from itertools import islice

import msgspec

from kvarn.shapes import BLOCK_SIZE
from kvarn.traffic.arrivals import ArrivalPattern, arrivals
from kvarn.traffic.conversation import Conversation
from kvarn.traffic.distributions import LogNormal
from kvarn.traffic.scaling import apart
from kvarn.traffic.sessions import SHARED_KEYS, SessionShape, sessions, single_requests
from kvarn.traffic.workload import Segment, Vocabulary

VOCABULARY = Vocabulary(300, 3300)
PREFIX_TOKENS = 1500  # of a system prompt, a document
AGENTS = SessionShape(
    turns=LogNormal(24, 0.6, low=2, high=80),
    system_tokens=PREFIX_TOKENS,
    kinds=4,
    first_tokens=LogNormal(900, 0.8, high=4000),
    new_tokens=LogNormal(300, 0.8, high=4000),
    output_tokens=LogNormal(60, 0.6, high=400),
    tool_share=5 / 6,
    tool_s=LogNormal(3.0, 1.2, high=300.0),
    person_s=LogNormal(60.0, 1.0, high=1200.0),
)
"""Agents at work for a person: runs of tools, and the person's pauses one turn in six; some 500 new tokens a turn."""


def agents(count: int, every_s: float, seed: int) -> list[Conversation]:
    """Sessions of `AGENTS`, one in `every_s` seconds on average."""
    return list(islice(sessions(arrivals(ArrivalPattern(), 1 / every_s, seed), AGENTS, seed, "agent"), count))


def strangers(count: int, every_s: float, seed: int) -> list[Conversation]:
    """Single requests without sessions: few-shot prompts and documents that many share, by Zipf's law."""
    weights = [1.0 / rank for rank in range(1, 401)]
    prefixes = random.Random(seed).choices(range(400), weights, k=count)
    moments = arrivals(ArrivalPattern(), 1 / every_s, seed + 1)
    own, answer = LogNormal(80, 0.5, high=400), LogNormal(40, 0.5, high=200)
    requests = apart(single_requests(moments, own, answer, seed), 1)
    return [_behind(prefix, each) for prefix, each in zip(prefixes, requests, strict=False)]


def _behind(prefix: int, request: Conversation) -> Conversation:
    [turn] = request.turns
    shared = Segment(SHARED_KEYS + AGENTS.kinds + prefix, PREFIX_TOKENS)
    return msgspec.structs.replace(request, turns=(msgspec.structs.replace(turn, segments=(shared, *turn.segments)),))


def context_tokens(conversation: Conversation) -> int:
    """Tokens at its end, and another block."""
    last = conversation.turns[-1]
    return last.prompt_tokens + last.output_tokens + BLOCK_SIZE
