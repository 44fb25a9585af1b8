"""The rollouts of one gateway process: routes with their shares, samples of requests, and decisions.

One process is the leader: it alone decides (`kvarn.rollouts.rollout`) and writes rollouts to the database. The others
follow what stands there, and leave samples and commands there.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Callable, Sequence

from kvarn.answers.model_routes import ModelRoutes
from kvarn.catalog.model_table import ModelTable
from kvarn.catalog.text_pool import TextPool
from kvarn.clock import SYSTEM_CLOCK
from kvarn.config.rollout import RolloutConfig
from kvarn.config.routes import RouteConfig
from kvarn.jobs.periodic import Periodic
from kvarn.replica.client.protocol import ReplicaState
from kvarn.rollouts.golden_score import ask_golden, golden_path
from kvarn.rollouts.observer import RolloutObserver
from kvarn.rollouts.rollout import Rollout, RolloutEndedError
from kvarn.rollouts.routes import hold_back, rollout_routes
from kvarn.rollouts.samples import RolloutSample, count
from kvarn.rollouts.shadow import Shadows
from kvarn.rollouts.store import RolloutStore, StoredRow
from kvarn.routing.model_choice import version_name
from kvarn.store.engine import Store
from kvarn.store.errors import StoreAwayError, StoreError

_UPDATE_S = 1.0  # seconds between two reads of the database
_MAX_UNSENT = 10_000
"""Samples of a rollout that wait for the database; older ones are dropped."""

log = logging.getLogger(__name__)


class RolloutRefusedError(Exception):
    """The model cannot have this rollout; the message says why."""


class Rollouts:
    """All rollouts, as this process knows them. `may_lead`: whether it may be the leader; of several that may, the
    holder of the lease is."""

    def __init__(
        self,
        routes: ModelRoutes,
        configured: Sequence[RouteConfig],
        shadows: Shadows,
        models: ModelTable,
        store: Store,
        text: TextPool,
        *,
        may_lead: bool,
        clock: Callable[[], float] = SYSTEM_CLOCK.time,
    ) -> None:
        self.rollouts: dict[str, Rollout] = {}
        self.is_leader = False
        """Only while a rollout is under way."""
        self.on_saved: Callable[[], None] = lambda: None
        """Called after a write to the database: other replicas may be wanted."""
        self._routes = routes
        self._configured = {route.name: route for route in configured}
        self._models = models
        self._stored = RolloutStore(store)
        self._text = text
        self._may_lead = may_lead
        self._clock = clock
        self._by_route: dict[str, Rollout] = {}  # by the name of each route that is shared between two versions
        self._unsent: defaultdict[tuple[str, float], deque[RolloutSample]] = defaultdict(
            lambda: deque(maxlen=_MAX_UNSENT)
        )
        """Samples that are not left in the database yet, by the rollout's model and beginning."""
        self._golden: dict[str, asyncio.Task[None]] = {}
        self._checked: dict[str, float] = {}
        self._applied: list[RouteConfig] = []
        self._loop = Periodic("updates of rollouts", self.update, _UPDATE_S)
        self.observer = RolloutObserver(shadows, self._rollout_of, self._report)
        self.start, self.wake = self._loop.start, self._loop.wake

    async def stop(self) -> None:
        """Let another process lead."""
        await self._loop.stop()
        for task in self._golden.values():
            task.cancel()
        await asyncio.gather(*self._golden.values(), return_exceptions=True)
        if self.is_leader:
            try:
                await self._save_changed()
                await self._stored.give_lease_back()
            except StoreError as error:
                log.warning("rollouts stay with this gateway until its lease ends: %s", error)

    # Commands -------------------------------------------------------------------------------------------------------

    def begin(self, model: str, stable: int, candidate: int, config: RolloutConfig, by: str) -> Rollout:
        """A rollout of a deployment's version; the caller has it saved, then `take`n. Raises `RolloutRefusedError`."""
        self.refuse_under_way(model)
        route = self._configured.get(model)
        if route is not None and [target.model for target in route.targets] != [model]:
            answering = ", ".join(repr(target.model) for target in route.targets)
            raise RolloutRefusedError(f"requests for {model!r} are answered by {answering}, as its route says")
        served = self._models.named(version_name(model, stable))
        golden = bool(config.golden_prompts) and golden_path(served) is not None
        return Rollout.start(model, (stable, candidate), config, self._clock(), by=by, golden=golden)

    def refuse_under_way(self, model: str) -> None:
        before = self.rollouts.get(model)
        if before is not None and not before.ended:
            raise RolloutRefusedError(
                f"a rollout of {before.candidate!r} is under way: roll it back or promote it first"
            )

    def command(self, model: str, command: str, by: str) -> Rollout:
        """`pause`, `resume`, `promote` or `rollback` a model's rollout, here and now. Raises `RolloutEndedError` where
        it has ended, or has failed a gate."""
        rollout = self.rollouts[model]
        before = len(rollout.log)
        getattr(rollout, command)(self._clock(), by)
        self._log_decisions(rollout, before)
        self._apply()
        return rollout

    def take(self, rollout: Rollout) -> None:
        self.rollouts[rollout.model] = rollout
        self._apply()

    async def save(self, rollout: Rollout) -> None:
        """Write a rollout that was begun or commanded here, and update at once. A follower writes no other: its copies
        are old."""
        await self._save(rollout)
        self.wake()

    # Samples --------------------------------------------------------------------------------------------------------

    def _rollout_of(self, route: str) -> Rollout | None:
        rollout = self._by_route.get(route)
        return None if rollout is None or rollout.ended else rollout

    def _report(self, rollout: Rollout, sample: RolloutSample) -> None:
        current = self.rollouts.get(rollout.model)
        if current is None or current.began != rollout.began:
            return  # it has ended
        if self.is_leader:
            count(current, sample)
        else:
            self._unsent[rollout.model, rollout.began].append(sample)

    async def _leave_samples(self) -> None:
        for (model, began), samples in list(self._unsent.items()):
            sent = list(samples)
            await self._stored.leave_samples(model, began, sent)
            for _ in sent:
                samples.popleft()
            if not samples:
                del self._unsent[model, began]

    async def _count_samples(self) -> None:
        """Count the samples of other processes, and those of this one from before it led."""
        for model, began, samples in await self._stored.read_samples():
            rollout = self.rollouts.get(model)
            if rollout is not None and rollout.began == began:
                for sample in samples:
                    count(rollout, sample)

    # Decisions ------------------------------------------------------------------------------------------------------

    async def update(self) -> None:
        """Read the database once; decide as the leader, or follow it."""
        try:
            await self._read()
        except StoreError as error:  # the known rollouts go on
            log.debug("rollouts go on without the database: %s", error)
        if self.is_leader:
            self.check()
        self._apply()
        if self.is_leader:
            try:
                await self._save_changed()
            except StoreAwayError as error:
                log.debug("rollouts are written later: %s", error)

    async def _read(self) -> None:
        """Take over the writes of other processes, and leave samples for the leader; as the leader, carry out commands
        and count samples."""
        rows, led = await self._stored.read(), self.is_leader
        if self._may_lead:
            self.is_leader = await self._hold_lease(rows)
        if self.is_leader != led:  # the last writes of an earlier leader count
            rows = await self._stored.read()
        follows = not self.is_leader or not led
        for row in rows:
            if self._stored.is_new(row) and (follows or self._is_next(row.rollout)):
                self.take(row.rollout)
            self._stored.note(row)
        if self._unsent:
            await self._leave_samples()
        if self.is_leader:
            await self._do_commands(rows)
            await self._count_samples()

    def _is_next(self, rollout: Rollout) -> bool:
        """Whether another process has begun this one since the last has ended. An end is final: an old state of an
        ended rollout is overwritten."""
        known = self.rollouts.get(rollout.model)
        return known is None or (known.ended and known.log[0] != rollout.log[0])

    async def _hold_lease(self, rows: list[StoredRow]) -> bool:
        """Hold the lease while there is something to decide; returns whether this process has it."""
        known = [*self.rollouts.values(), *(row.rollout for row in rows)]
        if any(row.command or row.candidate_version is not None for row in rows) or not all(e.ended for e in known):
            return await self._stored.hold_lease(self._clock())
        await self._stored.give_lease_back()
        return False

    async def _do_commands(self, rows: list[StoredRow]) -> None:
        for row in rows:
            if row.command is not None:
                model = row.rollout.model
                try:
                    self.command(model, row.command, row.commanded_by)
                except RolloutEndedError as error:
                    log.warning("a command for a rollout came too late: %s", error, extra={"model": model})
                await self._stored.done(row)

    def check(self) -> None:
        """Decide for each rollout whose check is due."""
        now = self._clock()
        for model, rollout in self.rollouts.items():
            if rollout.ended or now - self._checked.get(model, 0.0) < rollout.settings.check_interval_s:
                continue
            self._checked[model] = now
            ready, enough = self._is_ready(rollout.candidate), not self.missing(rollout)
            if rollout.golden_due and ready and self._is_ready(rollout.stable):
                task = self._golden.get(model)
                if task is None or task.done():
                    self._golden[model] = asyncio.create_task(
                        ask_golden(rollout, self._models, self._text), name=f"golden {model}"
                    )
            before = len(rollout.log)
            rollout.check(now, candidate_ready=ready, enough=enough, state=self.state_of(rollout.candidate))
            self._log_decisions(rollout, before)

    def _log_decisions(self, rollout: Rollout, before: int) -> None:
        for decision in rollout.log[before:]:
            log.log(
                logging.WARNING if decision.action == "rollback" else logging.INFO,
                "rollout of %s: %s",
                rollout.candidate,
                decision.action,
                extra={"model": rollout.model, "share": decision.share, "reason": decision.reason, "by": decision.by},
            )

    def missing(self, rollout: Rollout) -> int:
        """Ready replicas that the candidate still needs for the requests of the next step."""
        stable, candidate = (self._models.named(name) for name in (rollout.stable, rollout.candidate))
        if stable is None or candidate is None:
            return 1
        return rollout.missing(len(stable.replicas.ready), len(candidate.replicas.ready))

    def state_of(self, version: str) -> str:
        """State of a version's replicas, in words."""
        served = self._models.named(version)
        if served is None:
            return "it is not served"
        starting = [each.progress[0] for each in served.replicas.values() if each.state is not ReplicaState.READY]
        return starting[0] if starting else served.state_text

    def _is_ready(self, version: str) -> bool:
        served = self._models.named(version)
        return served is not None and served.ready

    def _apply(self) -> None:
        hold_back(self.rollouts.values(), self._models)
        shared = rollout_routes(self.rollouts.values(), self._configured, self._models)
        self._by_route = {name: rollout for name, (_, rollout) in shared.items()}
        wanted = list((self._configured | {name: route for name, (route, _) in shared.items()}).values())
        if wanted != self._applied:
            self._routes.replace(wanted)
            self._applied = wanted

    async def _save_changed(self) -> None:
        for rollout in list(self.rollouts.values()):
            await self._save(rollout)

    async def _save(self, rollout: Rollout) -> None:
        if await self._stored.save(rollout, self._clock()):
            self.on_saved()
