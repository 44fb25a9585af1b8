"""Traffic by name: generators after public measurements, each with its source and the figures that it meets."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import count, takewhile
from types import MappingProxyType

import msgspec

from kvarn.traffic import measured
from kvarn.traffic.arrivals import ArrivalPattern, arrivals
from kvarn.traffic.conversation import Conversation, ConversationTurn, Traffic
from kvarn.traffic.distributions import Distribution, LogNormal, Uniform, tokens
from kvarn.traffic.draws import Draws
from kvarn.traffic.sessions import SHARED_KEYS, SessionShape, SubagentShape, sessions, single_requests
from kvarn.traffic.workload import Segment

AGENTIC = SessionShape(
    turns=LogNormal(43, 0.8, low=2, high=400),
    system_tokens=17_000,
    kinds=4,
    first_tokens=LogNormal(90_000, 0.8, low=1000, high=200_000),
    new_tokens=LogNormal(1500, 1.1, low=20, high=40_000),
    output_tokens=LogNormal(444, 0.9, low=1, high=8000),
    tool_share=5 / 6,
    tool_s=LogNormal(3.0, 1.2, high=300.0),
    person_s=LogNormal(60.0, 1.0, high=1200.0),
    max_context=262_144,
    summary_tokens=LogNormal(80_000, 0.5),
    subagents=SubagentShape(
        session_share=0.44,
        starts=Uniform.whole(1, 3),
        at_once=Uniform.whole(1, 3),
        turns=LogNormal(8, 0.6, low=1, high=40),
        first_tokens=LogNormal(2000, 0.8, high=20_000),
    ),
)
"""Agents that write code: turns, lengths, hits and the share of sub-agents as vLLM tells them of AgentX's traces
(vllm#57103), gaps log-normal as llm-d-router#2928 learns them. Assumed: the gaps' medians, lengths of first prompts and
of compacted ones, and what sub-agents do."""

MOONCAKE = SessionShape(
    turns=measured.MOONCAKE_TURNS,
    system_tokens=512,
    first_tokens=measured.MOONCAKE_FIRST,
    new_tokens=measured.MOONCAKE_NEW,
    output_tokens=measured.MOONCAKE_OUTPUTS,
    person_s=LogNormal(110.0, 1.07, high=3000.0),
)


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """Traffic that has a name."""

    summary: str
    source: str
    requests: float
    """Mean requests of a conversation, those of sub-agents too."""
    make: Callable[[float, ArrivalPattern, int, float], Traffic]
    """Makes it of the conversations a second, their pattern, the seed and the duration."""


def traffic_of(
    name: str,
    *,
    rps: float,
    duration_s: float = math.inf,
    seed: int = 0,
    pattern: ArrivalPattern | None = None,
) -> Traffic:
    """Conversations of a preset that begin within `duration_s`, with `rps` requests a second in the long run.

    The same arguments give the same traffic, to the last bit, on every machine.

    Raises:
        ValueError: There is no such preset, or the rate is not above 0.
    """
    preset = PRESETS.get(name)
    if preset is None:
        raise ValueError(f"there is no traffic {name!r}: take one of {', '.join(PRESETS)}")
    if not 0.0 < rps < math.inf:
        raise ValueError("the rate must be above 0 requests per second")
    return preset.make(rps / preset.requests, pattern or ArrivalPattern(), seed, duration_s)


def _requests(prompt: Distribution, output: Distribution) -> Callable[[float, ArrivalPattern, int, float], Traffic]:
    def make(rate: float, pattern: ArrivalPattern, seed: int, duration_s: float) -> Traffic:
        return single_requests(arrivals(pattern, rate, seed, duration_s), prompt, output, seed)

    return make


def _sessions(shape: SessionShape, name: str) -> Callable[[float, ArrivalPattern, int, float], Traffic]:
    def make(rate: float, pattern: ArrivalPattern, seed: int, duration_s: float) -> Traffic:
        return sessions(arrivals(pattern, rate, seed, duration_s), shape, seed, name)

    return make


_LINES, _JOB_TOKENS = 200, 400


def _batch(rate: float, pattern: ArrivalPattern, seed: int, duration_s: float) -> Traffic:
    """Jobs of `_LINES` requests that come at once and share instructions; the first comes at 0 s."""
    draws, keys, every_s = Draws(seed, 20), count(1), _LINES / rate
    prompt, output = LogNormal(600, 0.6, high=8000), LogNormal(200, 0.6, high=2000)
    for job in takewhile(lambda number: number * every_s < duration_s, count()):
        instructions = Segment(SHARED_KEYS + job, _JOB_TOKENS)
        lengths = zip(tokens(prompt, draws, _LINES), tokens(output, draws, _LINES), strict=True)
        for length, answer in lengths:
            turn = ConversationTurn(segments=(instructions, Segment(next(keys), length)), output_tokens=answer)
            yield Conversation(begins_s=job * every_s, turns=(turn,), tenant="batch")


PRESETS = MappingProxyType(
    {
        "azure-conv": Preset(
            summary="chats of Azure's public: median prompt 1,020 tokens, answer 129",
            source="Azure LLM inference trace 2023, conversation: quantiles of the file",
            requests=1.0,
            make=_requests(measured.AZURE_CONV_PROMPTS, measured.AZURE_CONV_OUTPUTS),
        ),
        "azure-code": Preset(
            summary="code completion: median prompt 1,500 tokens, answer 13",
            source="Splitwise (ISCA 2024) on Azure's code trace: medians 1,500 and 13, means 2,048 and 28; log-normal",
            requests=1.0,
            make=_requests(measured.AZURE_CODE_PROMPTS, measured.AZURE_CODE_OUTPUTS),
        ),
        "mooncake": Preset(
            summary="chats of Kimi: long prompts, conversations of few turns, mean prompt 12,000 tokens",
            source="Mooncake (FAST 2025), conversation trace: quantiles of the file",
            requests=1.63,
            make=_sessions(MOONCAKE, "mooncake"),
        ),
        "sharegpt": Preset(
            summary="short questions, long answers: mean prompt 161 tokens, answer 338",
            source="vLLM (SOSP 2023), figure 11: means 161.31 and 337.99; log-normal, its spread assumed",
            requests=1.0,
            make=_requests(
                LogNormal.of_mean(69.3, 161.31, low=4, high=4096), LogNormal.of_mean(225.4, 337.99, low=1, high=2048)
            ),
        ),
        "agentic": Preset(
            summary="agents that write code: median 43 turns, prompt 142,000 tokens, over 96 % of it cached",
            source="AgentX's traces as vLLM describes them (vllm#57103); gaps after llm-d-router#2928",
            requests=75.0,
            make=_sessions(AGENTIC, "agentic"),
        ),
        "batch": Preset(
            summary=f"jobs of {_LINES} lines that come at once and share {_JOB_TOKENS} tokens of instructions",
            source="assumed",
            requests=1.0,
            make=_batch,
        ),
    }
)
"""By their names."""
