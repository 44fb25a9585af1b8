"""What is taken, what waits, and what is turned away."""

from __future__ import annotations

import msgspec
import pytest

from admission_world import TIMES
from kvarn.admission.controller import AdmissionController, Reason, Rules
from kvarn.admission.demand import Demand
from kvarn.admission.engine_load import EngineLoad
from kvarn.admission.traffic import Traffic
from kvarn.config.engine import EngineConfig
from kvarn.wire.messages import EngineStats

IDLE = EngineStats(kv_blocks_total=10_000, kv_blocks_free=10_000, step_times=TIMES, step_s=0.02)
BUSY = msgspec.structs.replace(IDLE, running=200, decode_rows=200, decode_context=40_000)
"""Each step takes 98 ms: nobody more can be taken without missing a TPOT of 50 ms."""


class Harness:
    """A controller, and what it said."""

    def __init__(self, stats: EngineStats = IDLE, **rules: float) -> None:
        config = EngineConfig(tpot_target_ms=50.0)
        settings = {
            "ttft_target_s": 1.0,
            "tpot_target_s": 0.05,
            "load_shedding": True,
            "max_queue": 100,
            "max_queue_s": 30.0,
        }
        settings |= rules
        self.traffic = Traffic(1.0, 2.0)
        self.controller = AdmissionController(
            Rules(**settings), EngineLoad(config), self.traffic, config.priority_ageing_s
        )
        self.now = 0.0
        self.stats = stats
        self.went: list[Demand] = []
        self.turned_away: dict[Demand, Reason] = {}
        self.controller.update(stats, 0.0)

    def hear(self, stats: EngineStats) -> None:
        self.stats = stats
        self.controller.update(stats, self.now)
        self.poll()

    def poll(self) -> None:
        for demand, refusal in self.controller.poll(self.now):
            if refusal is None:
                self.went.append(demand)
            else:
                self.turned_away[demand] = refusal.reason

    def send(self, tenant: str = "t", prompt: float = 100, output: float = 40, **fields) -> Demand:
        demand = Demand(tenant=tenant, prompt_tokens=prompt, output_tokens=output, arrival_s=self.now, **fields)
        refusal = self.controller.offer(demand, self.now)
        if refusal is not None:
            assert 0 < refusal.retry_after_s < 1000
            self.turned_away[demand] = refusal.reason
        self.poll()
        return demand

    def advance(self, seconds: float) -> None:
        """Time passes; the engine goes on telling the same."""
        self.now += seconds
        self.hear(msgspec.structs.replace(self.stats))


def test_an_engine_of_which_nothing_is_known_gets_everything():
    harness = Harness(EngineStats(running=10_000, waiting=5_000))
    assert [harness.send() for _ in range(50)] == harness.went
    assert harness.went[0].predicted_ttft_s is None


def test_what_was_sent_since_the_last_statistics_counts():
    """200 requests at once would be 200 rows and 200 prompts: statistics that come later must not be waited for."""
    harness = Harness()
    sent = [harness.send() for _ in range(200)]
    assert 10 < len(harness.went) < 120
    assert len(harness.went) + len(harness.turned_away) + len(harness.controller.queue) == len(sent)
    assert harness.went == sent[: len(harness.went)]


def test_requests_wait_while_the_running_would_miss_their_tpot_and_go_when_there_is_room():
    harness = Harness(BUSY)
    waits = harness.send()
    assert not harness.went and not harness.turned_away
    harness.advance(0.1)
    assert not harness.went
    harness.hear(msgspec.structs.replace(IDLE))
    assert harness.went == [waits]
    assert waits.predicted_ttft_s == pytest.approx(0.1 + 0.0153, abs=0.005)


def test_a_request_that_would_be_late_is_turned_away_at_once_with_the_time_it_would_take():
    harness = Harness(msgspec.structs.replace(IDLE, running=1, prefill_tokens=40_000))
    demand = Demand(tenant="t", prompt_tokens=100, output_tokens=10, arrival_s=0.0)
    refusal = harness.controller.offer(demand, 0.0)
    assert refusal is not None and refusal.reason is Reason.OVERLOADED
    # 40,000 tokens add 2 s to 20 steps of 2,048, which take 0.2 s; what is over 0.6 s must have gone first.
    assert refusal.retry_after_s == pytest.approx(2.2 - 0.6, rel=0.1)
    harness.advance(refusal.retry_after_s)
    harness.hear(msgspec.structs.replace(IDLE, running=1, prefill_tokens=int(40_000 - 19_000 * refusal.retry_after_s)))
    harness.send()
    assert not harness.turned_away, "it was told the truth"


def test_one_that_has_waited_in_vain_is_turned_away():
    harness = Harness(BUSY)
    waits = harness.send()
    harness.advance(0.5)
    assert not harness.turned_away
    harness.advance(0.5)
    assert harness.turned_away == {waits: Reason.OVERLOADED}


def test_a_tenant_beyond_its_share_is_told_so_and_the_other_is_not_held_up():
    harness = Harness(BUSY)
    first = harness.send("quiet")
    flood = [harness.send("flood") for _ in range(60)]
    refused = [demand for demand in flood if demand in harness.turned_away]
    assert refused and {harness.turned_away[demand] for demand in refused} == {Reason.OVER_SHARE}
    quiet = harness.send("quiet")
    assert quiet not in harness.turned_away
    harness.hear(msgspec.structs.replace(IDLE, running=60, decode_rows=60, decode_context=6_000))
    assert harness.went[0] is first and quiet in harness.went[:5]


def test_batch_work_leaves_room_and_goes_last():
    filled = msgspec.structs.replace(IDLE, running=70, decode_rows=70, decode_context=7_000)
    harness = Harness(filled, max_queue_s=300.0)
    harness.poll()
    batch = harness.send("b", priority=10)
    assert not harness.went, "the engine is filled to nine tenths"
    chat = harness.send("a")
    assert harness.went == [chat]
    harness.hear(msgspec.structs.replace(IDLE, running=20, decode_rows=20, decode_context=2_000))
    assert harness.went == [chat], "the others may come back any moment"
    for _ in range(3):
        harness.advance(10.0)
    assert harness.went == [chat, batch]


def test_batch_work_has_no_latency_target_and_waits_as_long_as_it_may():
    harness = Harness(BUSY, max_queue_s=30.0)
    batch = harness.send(priority=10)
    for _ in range(29):
        harness.advance(1.0)
    assert not harness.turned_away
    harness.advance(1.5)
    assert harness.turned_away == {batch: Reason.QUEUE_TIMEOUT}


def test_a_full_queue_sheds_batch_work_first():
    harness = Harness(BUSY, max_queue=2)
    first, second = harness.send(priority=10), harness.send(priority=10)
    third = harness.send(priority=10)
    assert harness.turned_away == {third: Reason.QUEUE_FULL}
    chat = harness.send(priority=0)
    assert harness.turned_away == {third: Reason.QUEUE_FULL, second: Reason.QUEUE_FULL}
    other = harness.send(priority=0)
    assert harness.turned_away[first] is Reason.QUEUE_FULL and other not in harness.turned_away
    assert harness.turned_away.keys().isdisjoint({chat, other})
    assert harness.send(priority=0) in harness.turned_away


def test_a_queue_of_no_length_lets_through_what_need_not_wait():
    harness = Harness(max_queue=0)
    assert harness.send() in harness.went
    harness.hear(BUSY)
    refused = harness.send()
    assert harness.turned_away == {refused: Reason.QUEUE_FULL}


def test_one_that_left_the_queue_frees_its_place():
    harness = Harness(BUSY, max_queue=1)
    waits = harness.send()
    harness.controller.withdraw(waits)
    assert harness.send() not in harness.turned_away
    harness.hear(msgspec.structs.replace(IDLE))
    assert len(harness.went) == 1


def test_targets_out_of_reach_turn_nobody_away_from_an_idle_engine():
    """A machine that needs 3 s for the prompt and 0.4 s for a step serves all the same, one or a few at a time."""
    slow = msgspec.structs.replace(TIMES, fixed_s=0.4, prefill_token_s=0.03)
    harness = Harness(msgspec.structs.replace(IDLE, step_times=slow))
    assert harness.send() in harness.went
    assert harness.send() not in harness.turned_away


def test_memory_that_would_not_suffice_holds_a_request_back():
    full = msgspec.structs.replace(IDLE, running=10, decode_rows=10, decode_context=100_000, kv_blocks_free=20)
    harness = Harness(full)
    waits = harness.send(prompt=300)
    assert not harness.went
    harness.hear(msgspec.structs.replace(full, kv_blocks_free=500))
    assert harness.went == [waits]


def test_answers_are_expected_to_be_as_long_as_they_turned_out_to_be():
    harness = Harness()
    assert harness.traffic.expected_output("new", 4096) == 128
    for _ in range(50):
        harness.traffic.learn("terse", 100, 0, 10)
        harness.traffic.learn("chatty", 100, 50, 500)
    assert harness.traffic.expected_output("terse", 4096) == pytest.approx(10)
    assert harness.traffic.expected_output("terse", 4) == 4
    assert harness.traffic.expected_output("chatty", 4096) == pytest.approx(500)
    assert harness.traffic.expected_output("new", 4096) == pytest.approx(255, rel=0.2)
    assert harness.traffic.expected_prompt(100) == pytest.approx(75, rel=0.1), "half of one tenant's prompts is cached"


def test_an_engine_that_started_anew_is_not_taken_for_busy():
    harness = Harness()
    for _ in range(200):
        harness.send(prompt=1000)
    assert harness.controller.queue or harness.turned_away
    harness.now += 0.1
    harness.hear(EngineStats())
    assert not len(harness.controller.queue), "nothing is known of the new one"


def test_without_load_shedding_only_batch_work_waits_for_room():
    harness = Harness(BUSY, load_shedding=False)
    sent = [harness.send(f"t{index % 3}", priority=priority) for index, priority in enumerate([0, 5, -10] * 100)]
    assert harness.went == sent and not harness.turned_away
    batch = harness.send(priority=10)
    harness.advance(1.0)
    chat = harness.send()
    assert harness.went[-1] is chat and batch not in harness.went
    harness.hear(msgspec.structs.replace(IDLE))
    for _ in range(20):
        harness.advance(10.0)
    assert harness.went[-1] is batch and not harness.turned_away
