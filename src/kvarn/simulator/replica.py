"""One simulated replica: an engine process after another, and what a gateway sees of them.

starting ──ready──▶ ready ──drain──▶ draining ──last answer──▶ gone
                      └──────lose──────▶ down ──start──▶ starting
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from kvarn.clock.virtual import VirtualClock
from kvarn.config.model import ModelConfig
from kvarn.costs.draws import Draws
from kvarn.costs.replica_model import ReplicaModel
from kvarn.engine.memory.remote_prefill import PrefillPeer
from kvarn.kvstore import TieredStore
from kvarn.replica.client.block_events import BlockEventReader, BlockWatcher
from kvarn.replica.client.protocol import ReplicaState
from kvarn.simulator.disk import DiskLink, disk_of
from kvarn.simulator.engine_loop import EngineLoop, Message
from kvarn.simulator.engine_parts import DeviceSpeed, engine_parts, memory_of
from kvarn.simulator.engine_totals import EngineTotals
from kvarn.simulator.world import World
from kvarn.wire.block_events import BlockEvents
from kvarn.wire.messages import AdapterInfo, EngineStats, ModelCard, Refused, StepOutput, TokenDelta
from kvarn.wire.supervision import ON_THEIR_WAY_S

VOCABULARY = 4096


class ReplicaListener(Protocol):
    """Hears what a replica has to say; the model that it belongs to."""

    def take_delta(self, replica: SimulatedReplica, delta: TokenDelta) -> None: ...

    def take_refusal(self, replica: SimulatedReplica, refused: Refused) -> None: ...

    def lost(self, replica: SimulatedReplica) -> None:
        """Its engine is gone, with all requests that it had."""

    def emptied(self, replica: SimulatedReplica) -> None:
        """It has drained: nothing is left to do."""


class ReplicaPeer(PrefillPeer, Protocol):
    """The engine that computes prompts for a replica."""

    @property
    def engine(self) -> SimulatedReplica: ...

    def close(self) -> None: ...


PeerOf = Callable[["SimulatedReplica", TieredStore], ReplicaPeer]
"""Starts the engine that computes prompts for a replica with this memory of its host."""


class SimulatedReplica:
    """The part of `ReplicaClient` that a `ReplicaSet` asks for is among its attributes."""

    def __init__(
        self,
        world: World,
        name: str,
        config: ModelConfig,
        model: ReplicaModel,
        listener: ReplicaListener,
        peer_of: PeerOf | None = None,
    ) -> None:
        self.name = name
        self.model = model
        self.config = config
        self.state = ReplicaState.STARTING
        self.card: ModelCard | None = None
        self.adapters: dict[str, AdapterInfo] = {}
        self.on_changed: Callable[[], None] = lambda: None
        self.reachable = True  # whether messages and answers get through; what is sent meanwhile waits
        self.hanging = False  # whether its process stands still
        self.totals = EngineTotals()
        self.device_s = 0.0
        """Seconds for which its devices were taken, times their number; without the present ones."""
        self.starts = 0  # engines that it has had
        self.store: TieredStore | None = None
        """Blocks in the memory of its host."""
        self._disk = disk_of(config.kv_tiers, model.block_bytes)
        self._disk_link: DiskLink | None = None
        self._world = world
        self._listener = listener
        self._chance = world.chance("replica", name)
        self._guesses = world.chance("guesses", name)
        self._speed = DeviceSpeed(model.step_times)
        self._peer_of = peer_of
        self._peer: ReplicaPeer | None = None
        self._loop: EngineLoop | None = None
        self._stats = EngineStats()
        self._busy_s = 0.0  # of engines before this one
        self._watcher: BlockWatcher | None = None
        self._reader: BlockEventReader | None = None
        self._told: list[Sequence[object]] = []  # what could not be told while it was not reachable
        self._taken_s: float | None = None

    # Its life --------------------------------------------------------------------------------------------------------

    def start(self, seconds: float | None = None) -> None:
        """Take its devices, and be ready after so many seconds; None: drawn from the model."""
        if seconds is None:
            seconds = self.model.start_s.at(self._chance.random())
        self.starts += 1
        self._taken_s = self._world.now
        self._change(ReplicaState.STARTING)
        if seconds:
            self._world.after(seconds, self._become_ready, self.starts)
        else:
            self._become_ready(self.starts)

    def _become_ready(self, start: int) -> None:
        if start != self.starts or self.state is not ReplicaState.STARTING:
            return
        model, clock = self.model, VirtualClock(self._world.now)
        self.store = memory_of(self.config, model, self._disk, self._world.clock.now)
        if self._disk is not None and self.store is not None and model.disk_link is not None:
            self._disk_link = DiskLink(self._world, self.name, self.store, self._disk, model.disk_link)
        if self._peer_of is not None and self.store is not None:
            self._peer = self._peer_of(self, self.store)
        self.card = _card(model)
        self._loop = EngineLoop(
            self._world,
            engine_parts(
                self.config,
                model,
                self._speed,
                clock,
                self.store,
                self._peer,
                learns=self._world.speeds_change,
                chance=self._guesses,
            ),
            self.card,
            clock,
            self,
            overheads=Draws(model.overhead_s, self._chance.getrandbits(64)),
            stats_interval_s=self._world.stats_interval_s,
            forwards=self._world.forwards,
        )
        self._stats = self._loop.service.stats()
        self._change(ReplicaState.READY)
        self._subscribe()

    def drain(self) -> None:
        """Take no more requests but those that are on their way; `emptied` is told when the last one is answered."""
        if self.state is not ReplicaState.READY or self._loop is None:
            self.end(ReplicaState.GONE)
            self._listener.emptied(self)
            return
        self._change(ReplicaState.DRAINING)
        self._world.after(ON_THEIR_WAY_S, self._refuse_more, self._loop)

    def _refuse_more(self, loop: EngineLoop) -> None:
        if loop is self._loop:
            loop.start_draining()
            if loop.is_resting:
                self.has_nothing_to_do()

    def has_nothing_to_do(self) -> None:
        """Its engine rests: the end, where it drains."""
        loop = self._loop
        if loop is not None and loop.is_draining and self.reachable and not loop.has_work:
            self.end(ReplicaState.GONE)
            self._listener.emptied(self)

    def lose(self) -> None:
        """Its engine process ends, and all that it had is lost; `start` makes another."""
        self.end(ReplicaState.DOWN)
        self._listener.lost(self)

    def end(self, state: ReplicaState = ReplicaState.GONE) -> None:
        """Its engine is gone; nobody is told of what it had."""
        loop = self._loop
        if loop is None:
            self.starts += 1  # what a start that is under way would do is not wanted any more
        else:
            loop.end()
            self._count(loop.service.stats())
            self._busy_s += loop.busy_s
        self._end_use()
        if self._disk_link is not None:
            self._disk_link.end()
        self._loop = self._reader = self.store = self._disk_link = None
        self._told.clear()
        self.hanging = False
        self.reachable, self.slowness = True, 1.0  # faults strike one process
        self._stats = EngineStats()
        if self._watcher is not None:
            self._watcher.forget()
        self._change(state)

    def close(self) -> None:
        """The simulation is over. Raises `BlocksHeldError`: requests are gone and blocks are held."""
        if self._loop is not None:
            stats = self._loop.finish()
            if not self._loop.service.has_work() and stats.kv_blocks_free != stats.kv_blocks_total:
                raise BlocksHeldError(f"{self.name} holds blocks for nobody")
            self._count(stats)
        self._end_use()

    def _count(self, stats: EngineStats) -> None:
        """An engine is over."""
        self.totals.add(stats)
        guesses = stats.speculation
        if guesses.drafts_total:
            self._world.tell(
                "speculation",
                replica=self.name,
                rows=guesses.drafts_total,
                proposed=guesses.draft_tokens_total,
                accepted=guesses.accepted_tokens_total,
            )

    @property
    def taken_s(self) -> float:
        """Seconds for which its devices were taken so far, times their number."""
        since = 0.0 if self._taken_s is None else self._world.now - self._taken_s
        engines = 1 if self._peer_of is None else 2
        return self.device_s + since * self.model.devices * engines

    @property
    def busy_s(self) -> float:
        """Seconds for which its engines computed."""
        return self._busy_s + (0.0 if self._loop is None else self._loop.busy_s)

    def _end_use(self) -> None:
        """Its devices are others' from now on."""
        self.device_s = self.taken_s
        self._taken_s = None
        if self._peer is not None:
            engine = self._peer.engine
            self._peer.close()
            self._peer = None
            self._busy_s += engine.busy_s

    def _change(self, state: ReplicaState) -> None:
        self.state = state
        self._world.tell("replica", replica=self.name, state=state.value)
        self.on_changed()

    # What a gateway sees and sends -----------------------------------------------------------------------------------

    @property
    def stats(self) -> EngineStats:
        """The latest statistics that have come."""
        loop = self._loop
        if loop is not None and loop.quiet_until_s < math.inf and loop.quiet_until_s <= self._world.clock.now():
            loop.catch_up()
        return self._stats

    def settle(self) -> None:
        """Have it tell of every step that has ended."""
        if self._loop is not None:
            self._loop.settle()

    def send(self, message: Message) -> None:
        """A message from the gateway; it is read before the next step."""
        if self._loop is not None:
            self._loop.send(message)

    def watch_blocks(self, watcher: BlockWatcher | None) -> None:
        self._watcher = watcher
        self._subscribe()

    def _subscribe(self) -> None:
        loop, watcher = self._loop, self._watcher
        if loop is None:
            return
        if watcher is not None:
            self._reader = BlockEventReader(watcher, loop.tell_all_blocks)
        loop.subscribe(wanted=watcher is not None)

    # Faults ----------------------------------------------------------------------------------------------------------

    @property
    def slowness(self) -> float:
        """Factor of its steps."""
        return self._speed.slowness

    @slowness.setter
    def slowness(self, factor: float) -> None:
        if self._loop is not None:
            self._loop.change_speed()
        self._speed.slowness = factor

    def set_reachable(self, reachable: bool) -> None:
        """Cut it off from the gateway, or join it again: what both have said meanwhile comes then."""
        loop = self._loop
        if loop is None:
            return
        loop.set_reading(reachable)
        self.reachable = reachable
        if reachable:
            told, self._told = self._told, []
            for each in told:
                self.take_outputs(each)
            if loop.is_resting:
                self.has_nothing_to_do()

    def set_hanging(self, hanging: bool) -> None:
        """Have its process stand still, or go on: the step under way is told then."""
        self.hanging = hanging
        if self._loop is not None:
            self._loop.set_hanging(hanging)

    # What its engine says --------------------------------------------------------------------------------------------

    def take_outputs(self, outputs: Sequence[object]) -> None:
        if not self.reachable:
            self._told.append(outputs)
            return
        listener = self._listener
        for output in outputs:
            if isinstance(output, StepOutput):
                if output.stats is not None:
                    self._stats = output.stats
                for delta in output.deltas:
                    listener.take_delta(self, delta)
            elif isinstance(output, Refused):
                listener.take_refusal(self, output)

    def take_blocks(self, event: BlockEvents) -> None:
        if self._reader is not None and self.reachable:
            self._reader.take(event)


class BlocksHeldError(RuntimeError):
    """An engine holds blocks though nobody is there who needs them: a bug."""


def _card(model: ReplicaModel) -> ModelCard:
    return ModelCard(
        kind="generate",
        architecture="modelled",
        dtype="none",
        vocab_size=VOCABULARY,
        max_context_length=model.max_context_length,
        num_parameters=0,
        kv_blocks=model.kv_blocks,
    )
