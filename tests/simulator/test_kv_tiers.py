"""KV blocks in the memory of simulated hosts, and prompts that a second engine computes."""

from __future__ import annotations

from typing import Any

import pytest

from kvarn.costs.replica_model import LinkModel
from kvarn.simulator.scenario import FaultConfig, ScenarioError
from kvarn.traffic.conversation import Conversation, ConversationTurn
from kvarn.traffic.workload import Segment
from simulated_fleet import STEP_S, Run, modelled, requests, scenario


def _returning(prompts: int, tokens: int, rounds: int = 2) -> list[Conversation]:
    """The same prompts again and again, one a second: more than the cache holds."""
    return [
        Conversation(
            begins_s=float(number * prompts + key),
            turns=(ConversationTurn(segments=(Segment(key=key, length=tokens),), output_tokens=2),),
        )
        for number in range(rounds)
        for key in range(prompts)
    ]


def test_prompts_that_the_cache_gave_up_are_loaded_from_host_memory() -> None:
    replica, traffic = modelled(kv_blocks=100), _returning(8, 512)
    without = Run(scenario(replica=replica), traffic)
    with_memory = Run(scenario({"kv_tiers": {"host_gib": 1.0}}, replica=replica), traffic)
    cached = [sum(each["cached"] for each in run.named("first_token")) for run in (without, with_memory)]
    assert cached[0] < 8 * 512 / 4
    assert cached[1] >= 8 * (512 - 16)
    assert with_memory.outcome.deployments[0].busy_s < without.outcome.deployments[0].busy_s


def test_a_loaded_block_takes_the_time_of_its_link() -> None:
    """Two prompts of which the cache holds one; the first comes again."""

    def last_ttft_s(link: LinkModel) -> float:
        replica = modelled(kv_blocks=40, host_link=link)
        traffic = [*_returning(2, 512, 1), *_returning(1, 512, 1)]
        moved = [Conversation(begins_s=5.0 * at, turns=each.turns) for at, each in enumerate(traffic)]
        run = Run(scenario({"kv_tiers": {"host_gib": 1.0}}, replica=replica), moved)
        (first,) = run.named("first_token", request=2)
        assert first["cached"] == 496
        return float(first["t"]) / 1e6 - 10.0

    slower = last_ttft_s(LinkModel(bytes_per_s=2**20 * 10_000)) - last_ttft_s(LinkModel(bytes_per_s=2**20 * 100_000))
    assert slower == pytest.approx(31 * (1e-4 - 1e-5), rel=0.3), "31 blocks of a MiB, and perhaps stores of others"


def test_memory_of_a_host_is_bounded_and_the_least_recently_used_goes() -> None:
    replica, traffic = modelled(kv_blocks=100), _returning(8, 512, 3)
    small = Run(scenario({"kv_tiers": {"host_gib": 64 / 1024}}, replica=replica), traffic)  # 64 of 256 blocks
    cached = sum(each["cached"] for each in small.named("first_token"))
    assert cached < 16 * 512 / 4


@pytest.mark.parametrize(
    ("model", "replica", "names"),
    [
        ({"kv_tiers": {"disk_gib": 1.0, "directory": "/tmp/none"}}, {}, "disk_link"),
        ({"kv_tiers": {}}, {"host_link": None}, "host_link"),
        ({"disaggregation": {}}, {}, "peer_link"),
    ],
)
def test_what_cannot_be_simulated_is_refused(model: dict[str, Any], replica: dict[str, Any], names: str) -> None:
    with pytest.raises((ScenarioError, ValueError), match=names):
        scenario(model, replica=modelled(**replica))


# Prefill and decode apart ---------------------------------------------------------------------------------------------

_LINK = LinkModel(bytes_per_s=50e9, latency_s=1e-4)


def _decodes_beside_prompts(disaggregated: bool, **changes: Any) -> Run:
    """Answers are written while long prompts come."""
    model: dict[str, Any] = {"engine": {"prefix_cache": True}}
    if disaggregated:
        model |= {"disaggregation": {}, "kv_tiers": {"host_gib": 4.0}}
    answers = requests([0.0, 0.1, 0.2], prompt=32, output=300)
    long = [
        Conversation(begins_s=2.0 + number, turns=(ConversationTurn(segments=each.turns[0].segments, output_tokens=4),))
        for number, each in enumerate(requests([0.0] * 13, prompt=2000)[3:])
    ]
    replica = modelled(kv_blocks=2000, peer_link=_LINK, **changes)
    return Run(scenario(model, replica=replica), [*answers, *long])


def test_long_prompts_are_computed_by_the_second_engine_and_delay_decodes_less() -> None:
    alone, pair = _decodes_beside_prompts(False), _decodes_beside_prompts(True)
    for run in (alone, pair):
        assert len(run.named("answered")) == 13
    asked = [each["cached"] for each in pair.named("first_token") if each["request"] >= 3]
    assert sum(cached >= 1984 for cached in asked) >= 8, "their blocks came from the other engine"
    assert sum(each["cached"] for each in alone.named("first_token")) == 0
    ends = [max(run.times("answered", request=number)[0] for number in range(3)) for run in (alone, pair)]
    assert ends[1] < ends[0]
    assert pair.outcome.deployments[0].device_s == pytest.approx(2 * pair.outcome.ended_s)


def test_what_a_slow_link_does_not_bring_in_time_is_computed_here() -> None:
    link = LinkModel(bytes_per_s=1e6)  # a block a second
    model = {"disaggregation": {"mode": "always"}, "kv_tiers": {"host_gib": 4.0}}
    run = Run(
        scenario(model, replica=modelled(kv_blocks=2000, peer_link=link)), requests([0.0, 0.5], prompt=2000, output=40)
    )
    assert len(run.named("answered")) == 2
    assert all(moment < 5 for moment in run.times("first_token")), "twice the time of computing, and half a second"
    computed_s = 2 * (2 * 2000 * 1e-4 + 42 * STEP_S) + 0.1
    assert run.outcome.deployments[0].busy_s < computed_s, "an engine that waits for blocks is not busy"


def test_a_pair_that_is_killed_loses_no_answer() -> None:
    model = {"disaggregation": {"mode": "always"}, "kv_tiers": {"host_gib": 4.0}}
    replica = modelled(kv_blocks=2000, peer_link=_LINK)
    kills = [FaultConfig(kind="kill", at_s=1.0 + 25 * number, replica=0) for number in range(2)]
    run = Run(scenario(model, kills, replica), requests([0.0, 0.5, 0.9, 25.9], prompt=2000, output=40))
    assert [each["tokens"] for each in run.named("answered")] == [40] * 4
    assert run.named("lost")
