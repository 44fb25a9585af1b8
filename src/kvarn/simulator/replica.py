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
from kvarn.engine.core import EngineParts
from kvarn.engine.step_time import StepTimeModel
from kvarn.replica.client.block_events import BlockEventReader, BlockWatcher
from kvarn.replica.client.protocol import ReplicaState
from kvarn.replica.server.block_events import BlockEventPublisher
from kvarn.replica.server.generate import GenerateService
from kvarn.simulator.world import World
from kvarn.wire.block_events import BlockEvents
from kvarn.wire.messages import AdapterInfo, EngineStats, ModelCard, Refused, StepOutput, Submit, TokenDelta
from kvarn.wire.sessions import SessionNews
from kvarn.worker.modelled import ModelledExecutor

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


class SimulatedReplica:
    """The part of `ReplicaClient` that a `ReplicaSet` asks for is among its attributes."""

    def __init__(
        self, world: World, name: str, config: ModelConfig, model: ReplicaModel, listener: ReplicaListener
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
        self.busy_s = 0.0
        self.preemptions = 0
        self.device_s = 0.0
        """Seconds for which its devices were taken, times their number; without the present ones."""
        self.starts = 0  # engines that it has had
        self._world = world
        self._listener = listener
        self._clock = VirtualClock()
        self._chance = world.chance("replica", name)
        self._service: GenerateService | None = None
        self._publisher: BlockEventPublisher | None = None
        self._watcher: BlockWatcher | None = None
        self._inbox: list[Message] = []
        self._told: list[Sequence[object]] = []  # what could not be told while it was not reachable
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
        executor = ModelledExecutor(
            self._step_s, self._clock, num_blocks=model.kv_blocks, max_context_length=model.max_context_length
        )
        parts = EngineParts(executor, self.config.engine, step_time=StepTimeModel.knowing(model.step_times))
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
            self._end(ReplicaState.GONE)
            self._listener.emptied(self)
            return
        self._change(ReplicaState.DRAINING)
        if not self._stepping and not self._inbox:
            self._world.after(0.0, self._finish_drain, self.starts)

    def _finish_drain(self, start: int) -> None:
        if start == self.starts and self.state is ReplicaState.DRAINING and not self._has_work():
            self._end(ReplicaState.GONE)
            self._listener.emptied(self)

    def lose(self) -> None:
        """Its engine process ends, and all that it had is lost; `start` makes another."""
        self._end(ReplicaState.DOWN)
        self._listener.lost(self)

    def _end(self, state: ReplicaState) -> None:
        self.starts += self._service is None  # what a start that is under way would do is not wanted any more
        if self._service is not None:
            self.preemptions += self._service.stats().preemptions_total
        self.device_s = self.taken_s
        self._taken_s = None
        self._service = self._publisher = None
        self._inbox.clear()
        self._told.clear()
        self._stepping = False
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
        self.device_s = self.taken_s
        self._taken_s = None

    @property
    def taken_s(self) -> float:
        """Seconds for which its devices were taken so far, times their number."""
        since = 0.0 if self._taken_s is None else self._world.now - self._taken_s
        return self.device_s + since * self.model.devices

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
        if not self._stepping and self._has_work():
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
