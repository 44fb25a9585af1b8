"""The server's last day in memory."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_replica import GENERATE_CARD, FakeReplica
from kvarn.catalog.metrics import EngineCollector
from kvarn.observe.history import EVERY_S, MAX_POINTS, HistoryQuery, ServerHistory
from kvarn.observe.merge import MetricFamily, read_families
from kvarn.observe.metrics import TTFT_BUCKETS, GatewayMetrics
from kvarn.observe.quantiles import quantile
from kvarn.observe.samples import SERIES
from kvarn.replica.client.protocol import ReplicaState
from kvarn.wire.messages import EngineStats

START = 1_800_000_000.0


class World:
    """A server whose metrics a test moves on, sampled every 10 s."""

    def __init__(self, models: tuple[str, ...] = ("m",)) -> None:
        self.now = START
        self.metrics = GatewayMetrics(models, clock=lambda: self.now)
        self.replicas = {name: FakeReplica(GENERATE_CARD) for name in models}
        self._models = {name: {name: each} for name, each in self.replicas.items()}
        self.metrics.registry.register(EngineCollector(self._models))
        self.history = ServerHistory(time=lambda: self.now)

    def request(self, ttft_s: float = 0.1, status: int = 200, model: str = "m") -> None:
        self.metrics.requests.labels(model, "/v1/chat/completions", str(status)).inc()
        if status == 200:
            self.metrics.ttft.labels(model).observe(ttft_s)
            self.metrics.slo_requests.labels(model, "met" if ttft_s < 1 else "missed").inc()

    def add_replica(self, name: str, state: ReplicaState = ReplicaState.READY) -> FakeReplica:
        """One more of the first model."""
        replica = self.replicas[name] = FakeReplica(GENERATE_CARD, state=state)
        next(iter(self._models.values()))[name] = replica
        return replica

    def engine(self, name: str, prompt_tokens: int) -> None:
        """An engine that is ready has computed so much."""
        self.replicas[name].state = ReplicaState.READY
        self.replicas[name].stats = EngineStats(prompt_tokens_total=prompt_tokens)

    def sample(self, after_s: float = EVERY_S) -> None:
        self.now += after_s
        self.history.sample(self.families)

    @property
    def families(self) -> list[MetricFamily]:
        return read_families(self.metrics.registry)

    def read(self, seconds: float = 3600, **query):
        return self.history.read(HistoryQuery(seconds=seconds, **query))


def test_a_chart_has_one_point_every_10_s_and_the_rates_of_that_time():
    world = World()
    world.sample()
    for count in (3, 0, 5):
        for _ in range(count):
            world.request()
        world.sample()
    page = world.read(60)
    assert page.step_s == 10 and page.at[-1] == world.now and len(page.at) == 6
    assert page.series["requests_per_s"] == [None, None, None, 0.3, 0.0, 0.5]
    assert page.whole["requests"] == 8 and page.recent["m"]["requests_per_s"] == pytest.approx(8 / 30)
    assert page.recent[""] == page.recent["m"]


def test_time_without_samples_is_a_gap_and_its_requests_are_not_crowded_into_one_point():
    world = World()
    world.sample()
    world.sample()
    for _ in range(1000):
        world.request()
    world.sample(after_s=100)
    world.request()
    world.sample()
    series = world.read(150).series["requests_per_s"]
    assert series[-1] == 0.1 and series[-11:-1] == [None] * 10 and series[-12] == 0.0


def test_what_is_not_known_is_no_0():
    world = World()
    world.sample()
    world.sample()
    last = {name: values[-1] for name, values in world.read(60).series.items()}
    unknown = {"ttft_p50_s", "ttft_p95_s", "tpot_p95_s", "goodput_ratio", "hit_ratio", "kv_utilisation"}
    unknown |= {"error_ratio", "refused_ratio"}
    assert {name for name, value in last.items() if value is None} == unknown
    assert last["requests_per_s"] == 0.0 and last["replicas_ready"] == 1.0


def test_latencies_errors_and_goodput():
    world = World()
    world.sample()
    for _ in range(9):
        world.request(ttft_s=0.15)
    world.request(ttft_s=1.5)
    world.request(status=500)
    world.request(status=503)
    for status, model in ((404, "unknown"), (429, "m"), (499, "m")):  # the last one left
        world.request(status=status, model=model)
    world.sample()
    whole = world.read(60).whole
    assert 0.1 < whole["ttft_p50_s"] <= 0.2 and 1 < whole["ttft_p95_s"] <= 2
    assert whole["goodput_ratio"] == 0.9 and whole["judged_requests"] == 10
    assert whole["errors_per_s"] == pytest.approx(0.2) and whole["error_ratio"] == pytest.approx(2 / 15)
    assert whole["refused_per_s"] == pytest.approx(0.2) and whole["refused_ratio"] == pytest.approx(2 / 15)


def test_gauges_of_engines_and_counters_across_a_restart():
    world = World()

    def engine(prompt: int, cached: int, used: int) -> None:
        world.replicas["m"].stats = EngineStats(
            prompt_tokens_total=prompt,
            cached_tokens_total=cached,
            kv_blocks_total=100,
            kv_blocks_free=100 - used,
            waiting_by_priority={0: 4},
            waiting_by_reason={"blocks": 3, "slot": 1},
            running=2,
        )
        world.sample()

    engine(1000, 0, 10)
    engine(1300, 100, 50)
    world.replicas["m"].starts = 2
    engine(200, 0, 30)
    page = world.read(60)
    assert page.series["input_tokens_per_s"][-2:] == [40.0, 20.0], "after a restart it counts from 0"
    assert page.series["kv_utilisation"][-3:] == [None, 0.5, 0.3] and page.whole["kv_utilisation"] == 0.4
    assert page.series["waiting_blocks"][-1] == 3 and page.series["waiting"][-1] == 4
    assert page.series["hit_ratio"][-2] == 0.25
    assert [(mark.kind, mark.model) for mark in page.marks] == [("start", ""), ("restart", "m")]


def test_of_several_replicas_one_restart_counts_nothing_of_the_others():
    world = World()
    world.add_replica("b")
    for a, b in ((1000, 50_000), (1100, 50_200), (30, 50_300), (130, 50_300)):
        world.engine("m", a)
        world.engine("b", b)
        world.sample()
    assert world.read(60).series["input_tokens_per_s"][-3:] == [30.0, 13.0, 10.0]


def test_what_engines_counted_before_they_were_heard_belongs_to_no_interval():
    world = World()
    world.add_replica("b", ReplicaState.STARTING)
    world.sample()
    world.engine("m", 40)
    world.engine("b", 10**6)  # it has outlived a gateway
    world.add_replica("late").stats = EngineStats(prompt_tokens_total=10**6)
    world.sample()
    world.replicas["b"].state = ReplicaState.DOWN  # its messages were lost, and it is joined again
    world.replicas["b"].stats = EngineStats()
    world.sample()
    world.engine("b", 10**6 + 500)
    world.sample()
    world.engine("late", 10**6 + 70)
    world.sample()
    assert world.read(60).series["input_tokens_per_s"][-4:] == [4.0, 0.0, 50.0, 7.0]


def test_all_models_are_counted_where_there_are_too_many_to_be_told_apart():
    world = World(tuple(f"m{number:03}" for number in range(250)))
    for reading in range(3):
        for replica in world.replicas.values():
            replica.stats = EngineStats(prompt_tokens_total=10_000 + 10 * reading)
        world.sample()
    page = world.read(60)
    assert len(page.recent) == 201 and page.series["input_tokens_per_s"][-1] == 250.0


def test_models_are_told_apart_and_added():
    world = World(("a", "b"))
    world.sample()
    world.request(model="a")
    world.request(model="b")
    world.request(model="b")
    world.sample()
    found = [world.read(60, model=name).series["requests_per_s"][-1] for name in ("a", "b", "", "gone")]
    assert found == [0.1, 0.2, pytest.approx(0.3), None]
    assert world.read(60).series["replicas"][-1] == 2


def test_a_day_is_kept_by_the_minute_in_bounded_memory_and_shown_in_bounded_points():
    world = World()
    families = world.families
    for _ in range(26 * 120):
        world.now += 30
        world.history.sample(families)
    world.request()
    world.sample()
    day = world.read(24 * 3600, names=["requests_per_s", "nonsense"])
    assert len(day.at) == MAX_POINTS == len(day.series["requests_per_s"]) and list(day.series) == ["requests_per_s"]
    assert day.step_s == 240 and None not in day.series["requests_per_s"][1:]
    assert day.whole["requests"] == 1
    assert len(world.history._fine) == 360 and len(world.history._coarse) == 1440
    assert len(world.read(1e9, points=12).at) == 12


@given(st.lists(st.floats(0.001, 250), min_size=1, max_size=60), st.sampled_from([0.5, 0.95]))
def test_a_quantile_lies_in_the_bucket_of_the_observation_it_is(seen: list[float], share: float):
    bounds = (*TTFT_BUCKETS, math.inf)
    cumulative = [sum(value <= bound for value in seen) for bound in bounds]
    exact = sorted(seen)[math.ceil(share * len(seen)) - 1]
    place = next(place for place, bound in enumerate(bounds) if exact <= bound)
    lower = bounds[place - 1] if place else 0.0
    assert lower <= quantile(share, TTFT_BUCKETS, cumulative) <= bounds[place]


def test_quantiles_of_an_hour_are_those_of_all_its_requests():
    world, chosen = World(), random.Random(1)
    world.sample()
    seen = []
    for _ in range(12):
        for _ in range(40):
            seen.append(chosen.lognormvariate(-1, 1))
            world.request(ttft_s=seen[-1])
        world.sample()
    whole, exact = world.read(3600).whole["ttft_p95_s"], sorted(seen)[int(0.95 * len(seen))]
    above = next(bound for bound in TTFT_BUCKETS if bound >= exact)
    assert TTFT_BUCKETS[TTFT_BUCKETS.index(above) - 1] <= whole <= above


def test_a_sample_that_reaches_into_an_interval_is_not_shown_twice():
    world = World()
    world.now -= 0.6
    world.sample(after_s=0.0)
    world.request()
    world.sample()
    assert world.read(30).series["requests_per_s"] == [None, None, 0.1]


def test_samples_that_are_a_little_late_leave_no_gaps():
    world = World()
    for _ in range(220):
        world.sample(after_s=10.1)
        world.now += 5  # looked at between two samples
        series = world.read(100, names=["running"]).series["running"]
        world.now -= 5
        assert len(series) == 10 and (None not in series or world.now < START + 120)


def test_a_model_that_appears_counts_from_0_and_every_series_has_a_value_function():
    world = World()
    world.sample()
    world.request(model="new")
    world.sample()
    assert world.read(60, model="new").whole["requests"] == 1
    assert set(world.read(60).series) == set(SERIES)
