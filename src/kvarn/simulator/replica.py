"""One simulated replica: the real service of a decoder, whose executor is modelled, on a clock of its own.

    starting ──ready──▶ ready ──drain──▶ draining ──last answer──▶ gone
                          └──────lose──────▶ down ──start──▶ starting

A step is computed when it begins, and what it has brought is told when it ends: in between, the replica's clock is
ahead of the world's. Messages that come meanwhile wait for the next step, as they do in the inbox of an engine process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from kvarn.clock.virtual import VirtualClock
from kvarn.config.model import ModelConfig
from kvarn.costs.replica_model import ReplicaModel
from kvarn.costs.step_times import StepShape
from kvarn.engine.memory.remote_prefill import PrefillPeer
from kvarn.kvstore import TieredStore
from kvarn.replica.client.block_events import BlockEventReader, BlockWatcher
from kvarn.replica.client.protocol import ReplicaState
from kvarn.replica.server.block_events import BlockEventPublisher
from kvarn.replica.server.generate import GenerateService
from kvarn.simulator.engine_parts import engine_parts, memory_of
from kvarn.simulator.world import World
from kvarn.wire.block_events import BlockEvents
from kvarn.wire.messages import AdapterInfo, EngineStats, ModelCard, Refused, StepOutput, Submit, TokenDelta
from kvarn.wire.sessions import SessionNews

STALLED_S = 1e-3
"""Seconds after which an engine looks again that has work and could not go on with any of it."""
VOCABULARY = 4096

Message: TypeAlias = Submit | str | SessionNews
"""A request, the id of one to forget, or news of a session."""


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
        self.stats = EngineStats()
        self.adapters: dict[str, AdapterInfo] = {}
        self.on_changed: Callable[[], None] = lambda: None
        self.slowness = 1.0  # factor of its steps
        self.reachable = True  # whether messages and answers get through; what is sent meanwhile waits
        self.hanging = False  # whether its process stands still
        self.busy_s = 0.0
        self.preemptions = 0
        self.device_s = 0.0
        """Seconds for which its devices were taken, times their number; without the present ones."""
        self.starts = 0  # engines that it has had
        self._world = world
        self._listener = listener
        self._clock = VirtualClock()
        self._chance = world.chance("replica", name)
        self.store: TieredStore | None = None
        """Blocks in the memory of its host."""
        self._peer_of = peer_of
        self._peer: ReplicaPeer | None = None
        self._service: GenerateService | None = None
        self._publisher: BlockEventPublisher | None = None
        self._watcher: BlockWatcher | None = None
        self._inbox: list[Message] = []
        self._told: list[Sequence[object]] = []  # what could not be told while it was not reachable
        self._held: Sequence[object] | None = None  # outcome of a step that ended while it stood still
        self._stepping = False
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
        self._clock.move_to(self._world.now)
        model = self.model
        self.store = memory_of(self.config, model)
        if self._peer_of is not None and self.store is not None:
            self._peer = self._peer_of(self, self.store)
        parts = engine_parts(self.config, model, self._step_s, self._clock, self.store, self._peer)
        self.card = _card(model)
        self._service = GenerateService(parts, self.card, clock=self._clock.now)
        self.stats = self._service.stats()
        self._publisher = BlockEventPublisher(self._service.block_places, self._tell_blocks, self._clock)
        self._reader: BlockEventReader | None = None
        self._change(ReplicaState.READY)
        self._subscribe()

    def _step_s(self, shape: StepShape) -> float:
        return self.model.step_times.seconds(shape) * self.slowness

    def drain(self) -> None:
        """Take no more requests; `emptied` is told when the last one is answered."""
        if self.state is not ReplicaState.READY:
            self.end(ReplicaState.GONE)
            self._listener.emptied(self)
            return
        self._change(ReplicaState.DRAINING)
        if not self._stepping and not self._inbox:
            self._world.after(0.0, self._finish_drain, self.starts)

    def _finish_drain(self, start: int) -> None:
        is_over = self.reachable and not self._has_work()
        if start == self.starts and self.state is ReplicaState.DRAINING and is_over:
            self.end(ReplicaState.GONE)
            self._listener.emptied(self)

    def lose(self) -> None:
        """Its engine process ends, and all that it had is lost; `start` makes another."""
        self.end(ReplicaState.DOWN)
        self._listener.lost(self)

    def end(self, state: ReplicaState = ReplicaState.GONE) -> None:
        """Its engine is gone; nobody is told of what it had."""
        self.starts += self._service is None  # what a start that is under way would do is not wanted any more
        if self._service is not None:
            self.preemptions += self._service.stats().preemptions_total
        self._end_use()
        self._service = self._publisher = None
        self.store = None
        self._inbox.clear()
        self._told.clear()
        self._held = None
        self._stepping = self.hanging = False
        self.reachable, self.slowness = True, 1.0  # faults strike one process
        self.stats = EngineStats()
        if self._watcher is not None:
            self._watcher.forget()
        self._change(state)

    def close(self) -> None:
        """The simulation is over. Raises `IntegrityError`: requests are gone and blocks are held."""
        if self._service is not None:
            self._take_messages()
            if not self._service.has_work():
                self._service.check_integrity()
            self.preemptions += self._service.stats().preemptions_total
        self._end_use()

    @property
    def taken_s(self) -> float:
        """Seconds for which its devices were taken so far, times their number."""
        since = 0.0 if self._taken_s is None else self._world.now - self._taken_s
        engines = 1 if self._peer_of is None else 2
        return self.device_s + since * self.model.devices * engines

    def _end_use(self) -> None:
        """Its devices are free, and those of the engine that computes prompts for it."""
        self.device_s = self.taken_s
        self._taken_s = None
        if self._peer is not None:
            engine = self._peer.engine
            self._peer.close()
            self._peer = None
            self.busy_s += engine.busy_s

    def _change(self, state: ReplicaState) -> None:
        self.state = state
        self._world.tell("replica", replica=self.name, state=state.value)
        self.on_changed()

    # Messages --------------------------------------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        """A message from the gateway; it is read before the next step."""
        if self._service is None:
            return
        self._inbox.append(message)
        self._wake()

    def set_reachable(self, reachable: bool) -> None:
        """Cut it off from the gateway, or join it again: what both have said meanwhile comes then."""
        self.reachable = reachable
        if reachable:
            told, self._told = self._told, []
            for each in told:
                self._tell(each)
            self._wake()
            if not self._stepping:
                self._finish_drain(self.starts)

    def set_hanging(self, hanging: bool) -> None:
        """Have its process stand still, or go on: the step under way is told then."""
        self.hanging = hanging
        if not hanging:
            held, self._held = self._held, None
            if held is not None:
                self._end_step(self.starts, held)
            else:
                self._wake()

    def watch_blocks(self, watcher: BlockWatcher | None) -> None:
        self._watcher = watcher
        self._subscribe()

    def _subscribe(self) -> None:
        if self._publisher is None:
            return
        publisher, watcher = self._publisher, self._watcher
        if watcher is not None:
            self._reader = BlockEventReader(watcher, lambda: publisher.subscribe(0, wanted=True))
        publisher.subscribe(0, wanted=watcher is not None)

    def _tell_blocks(self, _gateway: int, event: BlockEvents) -> bool:
        if self._reader is not None and self.reachable:
            self._reader.take(event)
        return True

    # Steps -----------------------------------------------------------------------------------------------------------

    def _has_work(self) -> bool:
        return bool(self._inbox) or (self._service is not None and self._service.has_work())

    def _wake(self) -> None:
        if not self._stepping and not self.hanging and self._has_work():
            self._stepping = True
            self._begin_step(self.starts)

    def _take_messages(self) -> None:
        service = self._service
        assert service is not None, "messages wait for an engine"
        if not self.reachable:
            return
        inbox, self._inbox = self._inbox, []
        for message in inbox:
            if isinstance(message, Submit):
                refused = service.accept(message)
                if refused is not None:
                    self._listener.take_refusal(self, refused)
            elif isinstance(message, str):
                service.abort(message)
            else:
                service.take_session_news(message)

    def _begin_step(self, start: int) -> None:
        service = self._service
        if start != self.starts or service is None:
            return
        if self.hanging:
            self._stepping = False
            return
        clock = self._clock
        clock.move_to(self._world.now)
        changed = bool(self._inbox)
        self._take_messages()
        if not service.has_work():
            self._stepping = False
            if changed:
                self.stats = service.stats()
                self._send_blocks()
            if self.state is ReplicaState.DRAINING:
                self._finish_drain(start)
            return
        began = clock.now()
        outputs = service.step()
        if not outputs:
            clock.sleep(STALLED_S)
        self.busy_s += clock.now() - began
        self._world.at(clock.now(), self._end_step, start, outputs)

    def _end_step(self, start: int, outputs: Sequence[object]) -> None:
        if start != self.starts or self._service is None:
            return
        if self.hanging:
            self._held = outputs
            return
        self._tell(outputs)
        if start != self.starts:  # a fault, or what was told, has ended it
            return
        self._send_blocks()
        overhead = self.model.overhead_s
        if not overhead.is_zero and self._has_work():
            self._world.after(overhead.at(self._chance.random()), self._begin_step, start)
        else:
            self._begin_step(start)

    def _tell(self, outputs: Sequence[object]) -> None:
        if not self.reachable:
            self._told.append(outputs)
            return
        listener = self._listener
        for output in outputs:
            if isinstance(output, StepOutput):
                if output.stats is not None:
                    self.stats = output.stats
                for delta in output.deltas:
                    listener.take_delta(self, delta)
            elif isinstance(output, Refused):
                listener.take_refusal(self, output)

    def _send_blocks(self) -> None:
        if self._publisher is not None and self._service is not None:
            self._publisher.send_due(idle=not self._service.has_work())


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
