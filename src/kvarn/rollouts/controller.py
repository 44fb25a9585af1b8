"""The rollouts of a gateway process: who gets which version, what became of it, what follows from that.

One process judges: it alone moves rollouts on (`kvarn.rollouts.rollout`) and writes them to the database. The others
follow what stands there, and leave there what they have seen, and commands.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence

from kvarn.answers.model_routes import ModelRoutes
from kvarn.catalog.model_table import ModelTable
from kvarn.catalog.text_pool import TextPool
from kvarn.config.rollout import RolloutConfig
from kvarn.config.routes import RouteConfig
from kvarn.fleet.desired import replicas_of
from kvarn.jobs.periodic import Periodic
from kvarn.replica.client.protocol import ReplicaState
from kvarn.rollouts.golden_score import ask_golden, golden_path
from kvarn.rollouts.observer import RolloutObserver
from kvarn.rollouts.rollout import Phase, Rollout, RolloutEndedError
from kvarn.rollouts.routes import hold_back, rollout_routes
from kvarn.rollouts.samples import Sample, count
from kvarn.rollouts.shadow import Shadows
from kvarn.rollouts.store import RolloutStore, StoredRow
from kvarn.routing.model_choice import version_name
from kvarn.store.engine import Store
from kvarn.store.errors import StoreAwayError, StoreError

COMMANDS = ("pause", "resume", "promote", "rollback")
_LOOK_S = 1.0
"""Seconds between two looks at the database for commands, or for what the judging process has decided."""
_MAX_UNSENT = 10_000
"""Samples of a rollout that wait for the database; older ones are dropped."""

log = logging.getLogger("kvarn.gateway")


class UnknownRolloutError(LookupError):
    """The model has had no rollout, or cannot have this one; the message says why."""


class Rollouts:
    """All rollouts, as this process knows them.

    Args:
        routes: Are given the shares.
        configured: The routes of the configuration.
        shadows: Whose copies are compared.
        models: What is served: the versions are served models, or versions of one.
        store: Where rollouts are kept.
        text: Where prompts are made.
        may_judge: Whether this process may judge; of several gateways that may, the one that holds the lease does.
    """

    def __init__(
        self,
        routes: ModelRoutes,
        configured: Sequence[RouteConfig],
        shadows: Shadows,
        models: ModelTable,
        store: Store,
        text: TextPool,
        *,
        may_judge: bool,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.rollouts: dict[str, Rollout] = {}
        """The latest of each model, by what clients ask for."""
        self.judges = False
        """Whether this process judges now: only while there is a rollout to judge."""
        self.on_saved: Callable[[], None] = lambda: None
        """Called when the database knows of something new: other replicas may be wanted."""
        self._routes = routes
        self._configured = {route.name: route for route in configured}
        self._models = models
        self._stored = RolloutStore(store)
        self._text = text
        self._may_judge = may_judge
        self._clock = clock
        self._by_route: dict[str, Rollout] = {}
        """By the name of each route that is shared between two versions."""
        self._unsent: defaultdict[tuple[str, float], deque[Sample]] = defaultdict(lambda: deque(maxlen=_MAX_UNSENT))
        """Seen here and not told yet, by the rollout's model and beginning."""
        self._golden: dict[str, asyncio.Task[None]] = {}
        self._checked: dict[str, float] = {}
        self._applied: list[RouteConfig] = []
        self._loop = Periodic("looks at rollouts", self.look, _LOOK_S)
        self.observer = RolloutObserver(shadows, self._rollout_of, self._report)

    def start(self) -> None:
        """Judge or follow from now on."""
        self._loop.start()

    async def stop(self) -> None:
        """Let another process judge."""
        await self._loop.stop()
        for task in self._golden.values():
            task.cancel()
        await asyncio.gather(*self._golden.values(), return_exceptions=True)
        if self.judges:
            try:
                await self._save_changed()
                await self._stored.give_lease_back()
            except StoreError as error:
                log.warning("rollouts stay with this gateway until its lease ends: %s", error)

    # Commands -------------------------------------------------------------------------------------------------------

    def begin(self, model: str, candidate: str, config: RolloutConfig, by: str) -> Rollout:
        """Begin a rollout of a version to a model's clients; the caller has it saved.

        Raises:
            UnknownRolloutError: The versions are not served, or are one.
        """
        self.refuse_under_way(model)
        stable, before = self._stable_of(model), self._before(model)
        for version in (stable, candidate):
            if self._models.named(version) is None:
                raise UnknownRolloutError(f"{version!r} is not a served model: deploy it first")
        if stable == candidate:
            raise UnknownRolloutError(f"{candidate!r} already answers requests for {model!r}")
        rollout = self._start(model, stable, candidate, config, by)
        if before is not None:
            rollout.stable_promoted = before.phase is Phase.PROMOTED or before.stable_promoted
        self.take(rollout)
        return rollout

    def of_versions(self, model: str, stable: int, candidate: int, config: RolloutConfig, by: str) -> Rollout:
        """A rollout of a version of a deployment; the caller has it saved, then `take`n.

        Raises:
            UnknownRolloutError: Another model answers for this one.
        """
        if self._stable_of(model) != model:
            raise UnknownRolloutError(f"requests for {model!r} are answered by {self._stable_of(model)!r}")
        names = version_name(model, stable), version_name(model, candidate)
        return self._start(model, *names, config, by, (stable, candidate))

    def refuse_under_way(self, model: str) -> None:
        """Raises `UnknownRolloutError` where a rollout of the model is under way."""
        before = self.rollouts.get(model)
        if before is not None and not before.ended:
            raise UnknownRolloutError(
                f"a rollout of {before.candidate!r} is under way: roll it back or promote it first"
            )

    def _start(
        self,
        model: str,
        stable: str,
        candidate: str,
        config: RolloutConfig,
        by: str,
        versions: tuple[int, int] | None = None,
    ) -> Rollout:
        golden = bool(config.golden_prompts) and golden_path(self._models.named(stable)) is not None
        now = self._clock()
        return Rollout.start(model, stable, candidate, config, now, by=by, golden=golden, versions=versions)

    def command(self, model: str, command: str, by: str) -> Rollout:
        """Pause, resume, promote or roll back, here and now.

        Raises:
            UnknownRolloutError: There is none.
            RolloutEndedError: It has ended, or has failed a gate.
        """
        rollout = self.rollouts.get(model)
        if rollout is None:
            raise UnknownRolloutError(f"{model!r} has had no rollout")
        if command not in COMMANDS:
            raise UnknownRolloutError(f"{command!r} is none of {', '.join(COMMANDS)}")
        before = len(rollout.log)
        getattr(rollout, command)(self._clock(), by)
        self._tell(rollout, before)
        self._apply()
        return rollout

    # What is seen ---------------------------------------------------------------------------------------------------

    def _rollout_of(self, route: str) -> Rollout | None:
        rollout = self._by_route.get(route)
        return None if rollout is None or rollout.ended else rollout

    def _report(self, rollout: Rollout, sample: Sample) -> None:
        current = self.rollouts.get(rollout.model)
        if current is None or current.began != rollout.began:
            return  # it has ended
        if self.judges:
            count(current, sample)
        else:
            self._unsent[rollout.model, rollout.began].append(sample)

    async def _tell_samples(self) -> None:
        """Leave what this process has seen for the one that judges."""
        for (model, began), samples in list(self._unsent.items()):
            told = list(samples)
            await self._stored.leave_samples(model, began, told)
            for _ in told:
                samples.popleft()
            if not samples:
                del self._unsent[model, began]

    async def _count_samples(self) -> None:
        """Count what the others have seen, and what this process had seen before it judged."""
        for model, began, samples in await self._stored.read_samples():
            rollout = self.rollouts.get(model)
            if rollout is not None and rollout.began == began:
                for sample in samples:
                    count(rollout, sample)

    # What follows ---------------------------------------------------------------------------------------------------

    async def look(self) -> None:
        """Once: judge, or follow the process that does."""
        try:
            await self._read()
        except StoreError as error:  # the database is away: what is known goes on
            log.debug("rollouts go on without the database: %s", error)
        if self.judges:
            self.judge()
        self._apply()
        if self.judges:
            try:
                await self._save_changed()
            except StoreAwayError as error:
                log.debug("rollouts are written later: %s", error)

    async def _read(self) -> None:
        """Take over what other processes have written. Leave the one that judges what was seen here; where this is the
        one, do what was commanded and count what the others saw."""
        rows, judged = await self._stored.read(), self.judges
        if self._may_judge:
            self.judges = await self._hold_lease(rows)
        if self.judges != judged:  # what the process wrote that judged before, if any, counts
            rows = await self._stored.read()
        follows = not self.judges or not judged
        for row in rows:
            if self._stored.is_new(row) and (follows or self._is_next(row.rollout)):
                self.take(row.rollout)
            self._stored.note(row)
        if self._unsent:
            await self._tell_samples()
        if self.judges:
            await self._do_commands(rows)
            await self._count_samples()

    def _is_next(self, rollout: Rollout) -> bool:
        """Whether another process has begun this one since the last has ended. An end is final: an old state of what
        has ended is written over."""
        known = self.rollouts.get(rollout.model)
        return known is None or (known.ended and known.log[0] != rollout.log[0])

    def judge(self) -> None:
        """Move on each rollout whose check is due."""
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
            self._tell(rollout, before)

    def _tell(self, rollout: Rollout, before: int) -> None:
        for decision in rollout.log[before:]:
            log.log(
                logging.WARNING if decision.action == "rollback" else logging.INFO,
                "rollout of %s: %s",
                rollout.candidate,
                decision.action,
                extra={"model": rollout.model, "share": decision.share, "reason": decision.reason, "by": decision.by},
            )

    def missing(self, rollout: Rollout) -> int:
        """Ready replicas that the candidate of a deployment still needs for the requests of the next step."""
        if rollout.versions is None:
            return 0
        stable, candidate = (self._models.named(name) for name in (rollout.stable, rollout.candidate))
        if stable is None or candidate is None:
            return 1
        serving, ready = len(stable.replicas.ready), len(candidate.replicas.ready)
        return max(0, replicas_of(rollout.next_share, serving) - ready)

    def _apply(self) -> None:
        """Give the routes the shares as they are now."""
        hold_back(self.rollouts.values(), self._models)
        shared = rollout_routes(self.rollouts.values(), self._configured, self._models)
        self._by_route = {name: rollout for name, (_, rollout) in shared.items()}
        wanted = list((self._configured | {name: route for name, (route, _) in shared.items()}).values())
        if wanted != self._applied:
            self._routes.replace(wanted)
            self._applied = wanted

    async def _hold_lease(self, rows: list[StoredRow]) -> bool:
        """Whether this process judges: it holds the lease while there is something to judge."""
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
                except (UnknownRolloutError, RolloutEndedError) as error:
                    log.warning("a command for a rollout came too late: %s", error, extra={"model": model})
                await self._stored.done(row)

    def take(self, rollout: Rollout) -> None:
        """This is a model's rollout from now on."""
        self.rollouts[rollout.model] = rollout
        self._apply()

    def wake(self) -> None:
        """Look at once: the database knows of something new."""
        self._loop.wake()

    async def save(self, rollout: Rollout) -> None:
        """Write a rollout that was begun or told something here, and look at it at once. A process that only follows
        writes no other: its copies are old.

        Raises:
            StoreAwayError: Not now; the process that judges writes it later.
        """
        await self._save(rollout)
        self.wake()

    async def _save_changed(self) -> None:
        for rollout in list(self.rollouts.values()):
            await self._save(rollout)

    async def _save(self, rollout: Rollout) -> None:
        if await self._stored.save(rollout, self._clock()):
            self.on_saved()

    def state_of(self, version: str) -> str:
        """What a version's replicas do, in words."""
        served = self._models.named(version)
        if served is None:
            return "it is not served"
        starting = [each.progress[0] for each in served.replicas.values() if each.state is not ReplicaState.READY]
        return starting[0] if starting else served.state_text

    def _is_ready(self, version: str) -> bool:
        served = self._models.named(version)
        return served is not None and served.ready

    def _stable_of(self, model: str) -> str:
        """The version that answers requests for a model now.

        Raises:
            UnknownRolloutError: Several share them.
        """
        before = self._before(model)
        if before is not None and before.phase is Phase.PROMOTED:
            return before.candidate
        if before is not None and before.stable_promoted:
            return before.stable
        route = self._configured.get(model)
        if route is None:
            return model
        if len(route.targets) > 1:
            raise UnknownRolloutError(f"several models share the requests for {model!r}: there is no stable version")
        return route.targets[0].model

    def _before(self, model: str) -> Rollout | None:
        """The rollout before, between served models; what came of one between versions is the deployment's matter."""
        before = self.rollouts.get(model)
        return None if before is None or before.versions is not None else before
