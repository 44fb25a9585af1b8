"""Traffic of agents and of strangers, made from seeds: what clients will do, whatever the engine's speed.

The shape of the agents' sessions is that of vLLM's AgentX traffic (vllm#57103: long contexts that nearly all hit), made
smaller; gaps are log-normal, as llm-d-router#2928 learns them.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from kvarn.shapes import BLOCK_SIZE

VOCABULARY = 3000
PREFIX_TOKENS = 1500  # of a system prompt, a document


@dataclass(frozen=True)
class Turn:
    new_tokens: int  # tool's result, or what the person writes
    output_tokens: int
    calls_tools: bool
    gap_s: float  # until the next turn


@dataclass(frozen=True)
class Conversation:
    """What a client will do, whatever the engine's speed."""

    number: int
    begins_s: float
    prefix: int  # number of its system prompt
    turns: list[Turn]
    has_session: bool = True

    @property
    def tokens(self) -> int:
        """At its end, and another block."""
        return PREFIX_TOKENS + BLOCK_SIZE + sum(turn.new_tokens + turn.output_tokens for turn in self.turns)


def log_normal(chance: random.Random, median: float, sigma: float, most: float = math.inf) -> float:
    return min(median * math.exp(chance.gauss(0.0, sigma)), most)


def agents(count: int, every_s: float, seed: int) -> list[Conversation]:
    """Agents at work for a person: runs of tools (median 3 s), and the person's pauses (median 60 s) one turn in six;
    24 turns in the median, some 500 new tokens each."""
    chance, begins_s, made = random.Random(seed), 0.0, []
    for number in range(count):
        begins_s += chance.expovariate(1.0 / every_s)
        turns = []
        for place in range(max(2, int(log_normal(chance, 24, 0.6, 80)))):
            calls = chance.random() > 1 / 6
            turns.append(
                Turn(
                    new_tokens=int(log_normal(chance, 900 if place == 0 else 300, 0.8, 4000)) + 1,
                    output_tokens=int(log_normal(chance, 60, 0.6, 400)) + 1,
                    calls_tools=calls,
                    gap_s=log_normal(chance, 3.0, 1.2, 300) if calls else log_normal(chance, 60.0, 1.0, 1200),
                )
            )
        made.append(Conversation(number, begins_s, chance.randrange(4), turns))
    return made


def strangers(count: int, every_s: float, seed: int) -> list[Conversation]:
    """Single requests without sessions: few-shot prompts and documents that many share, by Zipf's law."""
    chance, begins_s, made = random.Random(seed), 0.0, []
    weights = [1.0 / rank for rank in range(1, 401)]
    prefixes = chance.choices(range(100, 500), weights, k=count)
    for number in range(count):
        begins_s += chance.expovariate(1.0 / every_s)
        turn = Turn(int(log_normal(chance, 80, 0.5, 400)) + 1, int(log_normal(chance, 40, 0.5, 200)) + 1, False, 0.0)
        made.append(Conversation(10_000_000 + number, begins_s, prefixes[number], [turn], has_session=False))
    return made


def text(seed: int, length: int) -> list[int]:
    chance = random.Random(seed)
    return [300 + chance.randrange(VOCABULARY) for _ in range(length)]
