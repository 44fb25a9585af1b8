"""Watches of replicas: each asks its engine while somebody looks, and no longer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace

from kvarn.catalog.models import ServedModel
from kvarn.clock import SYSTEM_CLOCK, Clock
from kvarn.gateway.console.live.state import BlockOwners, BlockTotals, LiveState, ReplicaLine, StepHistory
from kvarn.replica.client.protocol import ReplicaClient, ReplicaState
from kvarn.wire.questions import AskKVMap, AskLiveSteps

_EVERY_S = 0.25
_IDLE_S = 1.0
"""Interval of states in which nothing has changed: viewers see that the engine answers."""
_BLOCKS_EVERY_S = 1.0
_MAX_REPLICAS = 100

_log = logging.getLogger("kvarn.gateway")


class ReplicaWatch:
    """States of one replica, for all of its viewers."""

    def __init__(self, model: ServedModel, replica: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self.state = LiveState(version=1, turns={}, replicas=_lines(model))
        self.names: dict[str | None, dict[str, str]] = {}
        """Names of tenants as viewers of an organisation read them; None: as those who see all."""
        self._model = model
        self._replica = replica
        self._clock = clock
        self._history = StepHistory()
        self._owners = BlockOwners()
        self._changed = asyncio.Event()
        self._viewers = 0
        self._task: asyncio.Task[None] | None = None
        self._starts: int | None = None
        self._blocks_due_s = 0.0
        self._shown_s = 0.0

    @property
    def is_watched(self) -> bool:
        return self._viewers > 0

    @asynccontextmanager
    async def viewing(self) -> AsyncGenerator[None, None]:
        """Ask the engine until this ends, and nobody else views it."""
        self._viewers += 1
        if self._task is None:
            self._task = asyncio.create_task(self._ask_on(), name=f"watch of {self._replica}")
        try:
            yield
        finally:
            self._viewers -= 1
            if not self._viewers and self._task is not None:
                task, self._task = self._task, None
                task.cancel()
                await asyncio.wait({task})

    async def after(self, seen: LiveState | None) -> LiveState:
        """The state now, once it is another than the one seen: those between them are left out."""
        while seen is not None and self.state.version == seen.version:
            await self._changed.wait()
        return self.state

    async def _ask_on(self) -> None:
        while True:
            try:
                await self._ask()
            except Exception:
                _log.exception("a replica cannot be watched; will retry", extra={"replica": self._replica})
            await asyncio.sleep(_EVERY_S)

    async def _ask(self) -> None:
        client = _find(self._model, self._replica)
        problem = _problem(client)
        state = replace(self.state, replicas=_lines(self._model))
        if client is not None and not problem:
            if self._starts not in (None, client.starts):
                self._history.restart()
            self._starts = client.starts
            state, problem = await self._look(client, state)
        if problem:
            state = replace(self.state, replicas=state.replicas, problem=problem)
        self._show(state)

    async def _look(self, client: ReplicaClient, state: LiveState) -> tuple[LiveState, str]:
        history = self._history
        live = await client.ask(AskLiveSteps(history.asked_after))
        if live is None:
            return state, "the engine does not answer"
        now_s = self._clock.time()
        running = history.take(live, now_s)
        blocks = state.blocks
        if self._clock.now() >= self._blocks_due_s:
            self._blocks_due_s = self._clock.now() + _BLOCKS_EVERY_S
            found = await client.ask(AskKVMap())
            blocks = blocks if found is None else self._owners.renumber(found)
        return replace(
            state,
            epoch=history.epoch,
            at_s=now_s,
            problem="",
            steps=history.steps,
            turns=history.turns,
            last_turn=history.last_turn,
            running=running,
            queue=live.queue,
            totals=BlockTotals(
                kv_blocks=live.kv_blocks, free_blocks=live.free_blocks, cached_blocks=live.cached_blocks
            ),
            blocks=blocks,
        ), ""

    def _show(self, state: LiveState) -> None:
        """Tell the viewers: at once where something has changed, else once a second while the engine answers."""
        before, now = self.state, self._clock.now()
        kept = _with_unchanged(before, state)
        differs = replace(kept, at_s=before.at_s) != before
        if not differs and (kept.problem or now - self._shown_s < _IDLE_S):
            return
        self._shown_s = now
        self.state = replace(kept, version=before.version + 1, turns=dict(kept.turns))
        self._changed.set()
        self._changed = asyncio.Event()


class Watches:
    """Watches of this gateway process; other processes have their own, and the engines tell each the same."""

    def __init__(self) -> None:
        self._watches: dict[tuple[str, str], ReplicaWatch] = {}

    def __len__(self) -> int:
        return len(self._watches)

    @asynccontextmanager
    async def view(self, model: ServedModel, replica: str) -> AsyncGenerator[ReplicaWatch, None]:
        key = (model.name, replica)
        watch = self._watches.get(key)
        if watch is None:
            watch = self._watches[key] = ReplicaWatch(model, replica)
        try:
            async with watch.viewing():
                yield watch
        finally:
            if not watch.is_watched and self._watches.get(key) is watch:
                del self._watches[key]


def choose_replica(model: ServedModel, name: str | None) -> str | None:
    """The replica of this name, of any version of the model, or the first that is ready; None: there is none."""
    replicas = [(found, client) for each in model.all_versions for found, client in each.replicas.items()]
    if name is not None:
        return next((found for found, _ in replicas if found == name), None)
    ready = (found for found, client in replicas if client.state is ReplicaState.READY)
    return next(ready, replicas[0][0] if replicas else None)


def _find(model: ServedModel, replica: str) -> ReplicaClient | None:
    return next((each.replicas[replica] for each in model.all_versions if replica in each.replicas), None)


def _problem(client: ReplicaClient | None) -> str:
    """Why a replica cannot be asked; empty: it can."""
    if client is None:
        return "the replica is gone"
    if client.state not in (ReplicaState.READY, ReplicaState.DRAINING):
        stage, fraction = client.progress
        return f"the replica is {client.state} ({stage}, {fraction:.0%})"
    if client.card is not None and client.card.architecture == "external":
        return "another server runs this model: it tells nothing of its steps"
    if client.card is not None and client.card.kind != "generate":
        return "this model generates no text: its engine keeps no records of steps, and has no KV cache"
    return ""


def _lines(model: ServedModel) -> list[ReplicaLine]:
    lines = [_line(name, each, client) for each in model.all_versions for name, client in each.replicas.items()]
    return lines[:_MAX_REPLICAS]


def _line(name: str, version: ServedModel, client: ReplicaClient) -> ReplicaLine:
    stage, fraction = client.progress
    stats = client.stats
    return ReplicaLine(
        name=name,
        version=version.version,
        fingerprint="" if version.text is None else version.text.version,
        state=str(client.state),
        stage=stage,
        fraction=round(fraction, 3),
        running=stats.running,
        waiting=stats.waiting,
        kv_blocks=stats.kv_blocks_total,
        free_blocks=stats.kv_blocks_free,
    )


def _with_unchanged(before: LiveState, now: LiveState) -> LiveState:
    """The state now, its parts that are equal to those before replaced by these: then they are the same objects."""
    names = ("steps", "running", "queue", "totals", "replicas", "blocks")
    equal = {name: getattr(before, name) for name in names if getattr(before, name) == getattr(now, name)}
    return replace(now, **equal)
