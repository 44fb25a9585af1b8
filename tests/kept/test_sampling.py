"""Which requests are kept: rates hold, what fails and what is slow is kept before the rest."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from kvarn.clock.virtual import VirtualClock
from kvarn.config.platform import KeptConfig
from kvarn.kept.sampling import BURST_S, KeptReason, KeptSampler

WIDTH = 2 ** (1 / 8)
"""Of a bucket of durations."""
outcomes = st.sampled_from(["finished", "aborted", "refused", "failed"])


class Requests:
    """A sampler on a clock that stands still until it is moved."""

    def __init__(self, **config: float) -> None:
        self.clock = VirtualClock()
        self.sampler = KeptSampler(KeptConfig.model_validate(config), self.clock.now, random.Random(7).random)

    def keep(self, outcome: str = "finished", total_s: float = 1.0, model: str = "tiny") -> KeptReason | None:
        return self.sampler.reason(model, outcome, total_s)


def test_a_newcomer_finds_every_request() -> None:
    requests = Requests()
    assert all(requests.keep() is KeptReason.ORDINARY for _ in range(100))
    assert requests.keep("refused") is KeptReason.REFUSED
    assert requests.keep("failed") is KeptReason.ERROR
    assert requests.keep("aborted") is KeptReason.ORDINARY


@given(
    st.lists(st.tuples(st.floats(0, 10), outcomes, st.integers(1, 30)), max_size=60),
    st.floats(0, 3),
    st.floats(0, 3),
)
def test_no_more_are_kept_than_the_rates_allow(
    arrivals: list[tuple[float, str, int]], ordinary: float, refused: float
) -> None:
    requests = Requests(ordinary_per_s=ordinary, refused_per_s=refused, notable_per_s=2, slowest=0.0)
    kept = Counter[KeptReason | None]()
    for pause_s, outcome, count in arrivals:
        requests.clock.sleep(pause_s)
        kept.update(requests.keep(outcome) for _ in range(count))
    for reason, per_s in ((KeptReason.ORDINARY, ordinary), (KeptReason.REFUSED, refused), (KeptReason.ERROR, 2)):
        assert kept[reason] <= max(1, per_s * BURST_S) + per_s * requests.clock.now() + 1e-6
        assert per_s or not kept[reason]


def test_a_rate_that_was_used_up_comes_back_with_time() -> None:
    requests = Requests(ordinary_per_s=2)
    assert sum(requests.keep() is not None for _ in range(1000)) == 2 * BURST_S
    requests.clock.sleep(3)
    assert sum(requests.keep() is not None for _ in range(1000)) == 6


def test_processes_divide_the_rates_of_their_server() -> None:
    config = KeptConfig(ordinary_per_s=4)
    samplers = [KeptSampler(config, lambda: 0.0, lambda: 0.5, processes=4) for _ in range(4)]
    kept = [sum(each.reason("tiny", "finished", 1.0) is not None for _ in range(500)) for each in samplers]
    assert kept == [BURST_S] * 4


def test_one_in_so_many_is_drawn() -> None:
    requests = Requests(one_in=10, ordinary_per_s=1e6)
    kept = sum(requests.keep() is not None for _ in range(5000))
    assert 400 < kept < 600
    assert requests.keep("failed") is KeptReason.ERROR


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=300), st.sampled_from([0.01, 0.05, 0.2]))
def test_slow_is_what_few_of_its_model_and_hour_equal(totals: list[float], slowest: float) -> None:
    requests = Requests(slowest=slowest, notable_per_s=1e6, ordinary_per_s=1e6)
    for count, total_s in enumerate(totals, 1):
        is_slow = requests.keep(total_s=total_s) is KeptReason.SLOW
        seen = totals[:count]
        if is_slow:
            assert sum(each >= total_s for each in seen) <= slowest * count
        else:
            assert sum(each >= total_s / WIDTH for each in seen) > slowest * count


def test_an_hour_begins_with_what_the_hour_before_has_shown_and_forgets_it() -> None:
    requests = Requests(ordinary_per_s=1e6)
    for _ in range(200):
        requests.keep(total_s=10.0)
    requests.clock.move_to(3600.0)
    assert requests.keep(total_s=9.0) is KeptReason.ORDINARY, "slower ones than the slowest of all hours are few"
    assert requests.keep(total_s=20.0) is KeptReason.SLOW
    for _ in range(200):
        requests.keep(total_s=1.0)
    assert requests.keep(total_s=9.0) is KeptReason.ORDINARY, "of this hour two were slower: more than a hundredth"
    for _ in range(200):
        requests.keep(total_s=1.0)
    assert requests.keep(total_s=9.0) is KeptReason.SLOW, "10 s was usual in the hour before"


def test_models_are_compared_with_themselves() -> None:
    requests = Requests(ordinary_per_s=1e6)
    for _ in range(200):
        requests.keep(total_s=0.1, model="fast")
        requests.keep(total_s=5.0, model="large")
    assert requests.keep(total_s=5.0, model="fast") is KeptReason.SLOW
    assert requests.keep(total_s=5.0, model="large") is KeptReason.ORDINARY


def test_slow_ones_beyond_their_rate_are_ordinary() -> None:
    requests = Requests(notable_per_s=0, ordinary_per_s=1e6)
    for _ in range(200):
        requests.keep()
    assert requests.keep(total_s=50.0) is KeptReason.ORDINARY
    assert requests.keep("failed") is None
