"""When an engine counts as silent, deaf or hanging, in turns of the loop that reads its messages."""

from __future__ import annotations

from kvarn.config.replica import ReplicaConfig
from kvarn.fleet.supervision.heartbeats import HeartbeatWatch

CONFIG = ReplicaConfig(heartbeat_interval_s=0.5, heartbeat_timeout_s=2.0, step_timeout_s=10.0)


def test_silence_counts_from_the_last_message() -> None:
    watch = HeartbeatWatch(CONFIG)
    heard = [True, False, False, False, True, False, False, False, False]
    found = [watch.passed(heard=each) for each in heard]
    assert found[:-1] == [None] * 8
    assert found[-1] == "the engine was silent for 2 s"


def test_an_engine_that_hears_nothing_is_given_up() -> None:
    watch = HeartbeatWatch(CONFIG)
    found = [watch.passed(heard=True, unheard_s=3.0) for _ in range(4)]
    assert found == [None, None, None, "the engine heard nothing for 2 s"]


def test_a_step_that_takes_too_long_is_a_hang_though_heartbeats_come() -> None:
    watch = HeartbeatWatch(CONFIG)
    assert watch.passed(heard=True, busy_s=10.0) is None
    assert "in one step for more than 10 s" in (watch.passed(heard=True, busy_s=10.1) or "")


def test_a_timeout_below_the_interval_is_one_turn() -> None:
    watch = HeartbeatWatch(ReplicaConfig(heartbeat_interval_s=5.0, heartbeat_timeout_s=1.0))
    assert watch.turn_s == 1.0
    assert watch.passed(heard=False) is not None
