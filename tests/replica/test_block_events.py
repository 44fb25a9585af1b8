"""Events of cached blocks: what a gateway process knows equals what the engine's cache holds."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from block_watcher import SetWatcher, names_in
from engine_world import World
from kvarn.clock.virtual import VirtualClock
from kvarn.engine.memory.block_inventory import BlockInventory, packed
from kvarn.replica.client.block_events import BlockEventReader
from kvarn.replica.server import block_events
from kvarn.replica.server.block_events import BlockEventPublisher
from kvarn.wire.block_events import BlockEvents


class WatchedCache:
    """The cache of an engine, and by what it is watched."""

    def __init__(self, world: World) -> None:
        self.held: BlockInventory | None = None
        self._cache = world.engine.cache

    def report_to(self, held: BlockInventory | None) -> None:
        self.held = held
        self._cache.report_to(held)


class Gateways:
    """Gateway processes and the messages on their way to them and to the engine."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.clock = VirtualClock()
        self.watchers: dict[int, SetWatcher] = {}
        self.readers: dict[int, BlockEventReader] = {}
        self.events: list[tuple[int, BlockEvents]] = []
        self.asked: list[int] = []
        self.cache = WatchedCache(world)
        self.publisher = BlockEventPublisher([self.cache], self._send, self.clock)

    def _send(self, gateway: int, event: BlockEvents) -> bool:
        if gateway in self.readers:
            self.events.append((gateway, event))
        return gateway in self.readers

    def join(self, gateway: int) -> None:
        watcher = self.watchers[gateway] = SetWatcher()
        self.readers[gateway] = BlockEventReader(watcher, lambda: self.asked.append(gateway))
        self.asked.append(gateway)

    def deliver(self, drop: Callable[[], bool] = lambda: False) -> None:
        """What is under way arrives, until nothing is; some of it is lost."""
        while self.events or self.asked:
            events, self.events = self.events, []
            for gateway, event in events:
                if not drop():
                    self.readers[gateway].take(event)
            asked, self.asked = self.asked, []
            for gateway in asked:
                self.publisher.subscribe(gateway, wanted=True)

    def check(self) -> None:
        held = names_in(packed(self.world.engine.cache.names()))
        for watcher in self.watchers.values():
            assert watcher.names == held


@pytest.fixture(autouse=True)
def _small_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_events, "SNAPSHOT_BLOCKS", 3)


def _traffic(world: World, rng: random.Random, number: int) -> None:
    prompt = [rng.randrange(3)] * rng.randrange(1, 60) + [number % 50] * rng.randrange(1, 40)
    world.submit(f"r{number}", prompt, tenant=str(rng.randrange(2)), max_tokens=rng.randrange(1, 30))


@given(st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_every_process_knows_what_is_cached_after_each_step(seed: int) -> None:
    rng, world = random.Random(seed), World(num_blocks=20)
    gateways = Gateways(world)
    for number in range(60):
        if rng.random() < 0.3:
            _traffic(world, rng, number)
        if rng.random() < 0.05:
            gateways.join(len(gateways.readers))
        if rng.random() < 0.03:
            world.engine.forget_tenant("0")
        world.step()
        gateways.publisher.send_due(idle=True)
        gateways.deliver()
        gateways.check()


@given(st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_a_lost_event_is_noticed_and_made_good(seed: int) -> None:
    rng, world = random.Random(seed), World(num_blocks=20)
    gateways = Gateways(world)
    gateways.join(0)
    gateways.join(1)
    for number in range(60):
        if rng.random() < 0.3:
            _traffic(world, rng, number)
        world.step()
        gateways.publisher.send_due(idle=True)
        gateways.deliver(lambda: rng.random() < 0.2)
    world.submit("last", [seed % 50, 49] * 20, tenant="other", max_tokens=1)
    world.run()
    gateways.publisher.send_due(idle=True)
    gateways.deliver()  # a loss is noticed with the next event
    gateways.check()


def test_events_are_gathered_while_the_engine_works_and_cost_nothing_where_nobody_asks() -> None:
    world = World(num_blocks=64)
    gateways = Gateways(world)
    world.submit("unheard", 40)
    world.run()
    gateways.publisher.send_due(idle=True)
    assert gateways.cache.held is None and not gateways.events
    gateways.join(0)
    gateways.deliver()
    gateways.clock.move_to(1.0)
    gateways.publisher.flush()
    world.submit("heard", [9] * 100)
    while world.engine.has_work():
        world.step()
        gateways.publisher.send_due(idle=False)
    assert not gateways.events
    gateways.clock.sleep(block_events.SEND_EVERY_S)
    gateways.publisher.send_due(idle=False)
    assert len(gateways.events) == 1
    gateways.deliver()
    gateways.check()
    gateways.publisher.subscribe(0, wanted=False)
    assert gateways.cache.held is None


def test_a_process_that_is_gone_is_told_no_more() -> None:
    world = World(num_blocks=64)
    gateways = Gateways(world)
    gateways.join(0)
    gateways.deliver()
    del gateways.readers[0]
    world.submit("r", 40)
    world.run()
    gateways.publisher.flush()
    assert gateways.cache.held is None


def test_events_of_another_epoch_are_not_mixed_in() -> None:
    asked: list[None] = []
    watcher = SetWatcher()
    feed = BlockEventReader(watcher, lambda: asked.append(None))
    feed.take(BlockEvents(epoch=1, sequence=0, stored=b"a" * 8))
    assert watcher.names is None and len(asked) == 1
    feed.take(BlockEvents(epoch=1, sequence=4, stored=b"b" * 8, snapshot=True))
    feed.take(BlockEvents(epoch=2, sequence=5, stored=b"c" * 8))
    assert watcher.names == {b"b" * 8} and len(asked) == 2
    feed.take(BlockEvents(epoch=2, sequence=6, stored=b"d" * 8))  # on its way before the engine heard
    assert watcher.names == {b"b" * 8} and len(asked) == 2
    feed.take(BlockEvents(epoch=2, sequence=7, snapshot=True))
    assert watcher.names == set()
