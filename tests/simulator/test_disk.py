"""KV blocks on the disks of simulated hosts: written, found again, bounded, and read in the time of their link."""

from __future__ import annotations

import pytest

from kvarn.costs.replica_model import Distribution, LinkModel
from kvarn.costs.step_times import StepTimes
from kvarn.simulator.outcome import report
from kvarn.simulator.scenario import FaultConfig
from kvarn.traffic.conversation import Conversation, ConversationTurn
from kvarn.traffic.workload import Segment
from simulated_fleet import Run, modelled, scenario

BLOCK = 1 << 20
FAST = LinkModel(bytes_per_s=4e9, latency_s=1e-4)
TOKENS = 512  # of a prompt: 32 blocks, which take half a second to compute


def prompts(keys: list[int], every_s: float = 2.0, begins_s: float = 0.0) -> list[Conversation]:
    return [
        Conversation(
            begins_s=begins_s + every_s * number,
            turns=(ConversationTurn(segments=(Segment(key=key, length=TOKENS),), output_tokens=2),),
        )
        for number, key in enumerate(keys)
    ]


def played(
    keys: list[int],
    *,
    disk_gib: float = 1.0,
    host_gib: float = 80 / 1024,
    link: LinkModel = FAST,
    faults: tuple[FaultConfig, ...] = (),
    fast_forward: bool = True,
) -> Run:
    """Blocks are of a MiB; the cache has 40 and memory 80."""
    tiers = {"host_gib": host_gib, "disk_gib": disk_gib, "directory": "/none"}
    times = StepTimes(fixed_s=0.01, prefill_token_s=1e-3, decode_row_s=1e-4)
    replica = modelled(kv_blocks=40, disk_link=link, step_times=times, start_s=Distribution((0.5,)))
    one = scenario({"kv_tiers": tiers}, faults, replica)
    return Run(one if fast_forward else one.changed(["fast_forward=false"]), prompts(keys))


def cached(run: Run, first: int = 0) -> list[int]:
    return [each["cached"] for each in run.named("first_token") if each["request"] >= first]


def test_what_cache_and_memory_gave_up_is_read_from_disk() -> None:
    keys = [*range(8)] * 2
    run = played(keys)
    assert cached(run)[:8] == [0] * 8
    assert cached(run)[8:] == [TOKENS - 16] * 8
    without = played(keys, disk_gib=0.0)
    assert sum(cached(without)[8:]) < 3 * TOKENS, "memory has two prompts and a half"
    (told,) = report(run.outcome)["deployments"]
    assert told["disk"]["read_bytes"] >= 5 * 31 * BLOCK
    assert told["disk"]["written_bytes"] == BLOCK * sum(each["blocks"] for each in run.named("stored"))


def test_a_process_finds_what_the_one_before_it_has_written() -> None:
    kill = FaultConfig(kind="kill", at_s=3.0, replica=0)
    with_disk = played([0, 1, 9, 0], faults=(kill,), host_gib=1.0)
    in_memory = played([0, 1, 9, 0], faults=(kill,), host_gib=1.0, disk_gib=0.0)
    assert [cached(run, 3) for run in (with_disk, in_memory)] == [[TOKENS - 16], [0]]


def test_a_batch_that_is_not_written_when_its_process_ends_is_lost() -> None:
    kill = FaultConfig(kind="kill", at_s=3.0, replica=0)
    slow = played([0, 9, 0], faults=(kill,), link=LinkModel(bytes_per_s=5e6))  # 32 MiB in seven seconds
    assert cached(slow, 2) == [0]


def test_a_block_takes_the_time_of_the_disk() -> None:
    def ttft_s(bytes_per_s: float) -> float:
        run = played([0, 1, 2, 3, 0], link=LinkModel(bytes_per_s=bytes_per_s, latency_s=2e-4))
        assert cached(run)[4] == TOKENS - 16
        return run.times("first_token", request=4)[0] - 8.0

    assert ttft_s(1e9) - ttft_s(4e9) == pytest.approx(31 * BLOCK * (1 / 1e9 - 1 / 4e9), abs=2e-3)


def test_what_a_slow_disk_does_not_bring_in_time_is_computed() -> None:
    run = played([0, 1, 2, 3, 0], link=LinkModel(bytes_per_s=40e6))
    assert run.times("first_token", request=4)[0] - 8.0 < 2 * TOKENS * 1e-3 + 0.1, "as long as computing, at most"


def test_a_disk_is_bounded() -> None:
    keys = [*range(8)] * 2
    small = played(keys, disk_gib=64 / 1024)
    assert sum(cached(small)[8:]) < 4 * TOKENS
    assert report(small.outcome)["deployments"][0]["disk"]["written_bytes"] > 64 * BLOCK


def test_the_log_is_the_same_again_and_step_by_step() -> None:
    keys, kill = [0, 1, 2, 3, 0, 1, 4, 2], (FaultConfig(kind="kill", at_s=6.1, replica=0),)
    runs = [played(keys, faults=kill, fast_forward=each) for each in (True, True, False)]
    assert len({each.outcome.log_sha256 for each in runs}) == 1
