"""The rollouts of a gateway process: who gets which version, what became of it, what follows from that.

One process judges: it alone moves rollouts on (`kvarn.fleet.rollout`) and writes them to the database. The others
follow what stands there, and leave commands there.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from kvarn.config.rollout import RolloutConfig
from kvarn.config.routes import FallbackConfig, RouteConfig, ShadowConfig, TargetConfig
from kvarn.fleet.rollout import Phase, Rollout, RolloutEndedError
from kvarn.jobs.periodic import Periodic
from kvarn.quality.gates import Outcome
from kvarn.quality.golden import GoldenSetError, golden_set_path, read_golden_set, spread
from kvarn.quality.matching import MatchedPairs
from kvarn.replica.client.protocol import ReplicaLostError, RequestRefusedError
from kvarn.serving.choice import ChoiceDelta
from kvarn.serving.golden_score import answers_rightly
from kvarn.serving.model_choice import ModelRoutes
from kvarn.serving.models import ModelTable, ServedModel
from kvarn.serving.rollout_outcomes import is_fault, outcome_of
from kvarn.serving.rollout_store import RolloutStore, StoredRow
from kvarn.serving.shadow import ComparedAnswer, ShadowResult, Shadows
from kvarn.serving.text_pool import TextPool
from kvarn.serving.work import RequestRecord
from kvarn.store.engine import Store
from kvarn.store.errors import StoreAwayError, StoreError
from kvarn.wire.openai.errors import ApiError

if TYPE_CHECKING:
    from kvarn.serving.chat.answer import ChatRun
    from kvarn.serving.completion_answer import CompletionRun

RunT = TypeVar("RunT", bound="ChatRun | CompletionRun")

COMMANDS = ("pause", "resume", "promote", "rollback")
_LOOK_S = 1.0
"""Seconds between two looks at the database for commands, or for what the judging process has decided."""
_MAX_COPIES = 16

log = logging.getLogger("kvarn.gateway")


class UnknownRolloutError(LookupError):
    """The model has had no rollout, or cannot have this one; the message says why."""


class Rollouts:
    """All rollouts, as this process knows them.

    Args:
        routes: Are given the shares.
        configured: The routes of the configuration.
        shadows: Whose copies are compared.
        models: What is served: each version is a served model.
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
        self._routes = routes
        self._configured = {route.name: route for route in configured}
        self._models = models
        self._stored = RolloutStore(store)
        self._text = text
        self._may_judge = may_judge
        self._clock = clock
        self._pairs: dict[str, MatchedPairs] = {}
        self._golden: dict[str, asyncio.Task[None]] = {}
        self._checked: dict[str, float] = {}
        self._applied: list[RouteConfig] = []
        self._loop = Periodic("looks at rollouts", self.look, _LOOK_S)
        shadows.on_result, shadows.on_failure = self._shadowed, self._shadow_failed

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
        before = self.rollouts.get(model)
        if before is not None and not before.ended:
            raise UnknownRolloutError(f"a rollout of {model!r} is under way: roll it back or promote it first")
        stable = self._stable_of(model)
        for version in (stable, candidate):
            if self._served(version) is None:
                raise UnknownRolloutError(f"{version!r} is not a served model: deploy it first")
        if stable == candidate:
            raise UnknownRolloutError(f"{candidate!r} already answers requests for {model!r}")
        golden = bool(config.golden_prompts) and self._golden_path(stable) is not None
        now = self._clock()
        rollout = Rollout.start(model, stable, candidate, config, now, by=by, golden=golden)
        if before is not None:
            rollout.stable_promoted = before.phase is Phase.PROMOTED or before.stable_promoted
        self._take(rollout)
        return rollout

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

    def watch(self, record: RequestRecord, run: RunT) -> RunT:
        """A run as it is; where a rollout gave it its version, it is heard to its end."""
        rollout = self._rollout_of(record)
        if rollout is None or rollout.phase is not Phase.CANARY:
            return run
        return dataclasses.replace(run, deltas=self._heard(run.deltas, record, rollout))

    def failed(self, record: RequestRecord, model: str, error: Exception) -> None:
        """A version could not begin an answer."""
        rollout = self._rollout_of(record)
        if rollout is not None and model == rollout.candidate and is_fault(error):
            rollout.answered_by_candidate(Outcome(prompt_tokens=0, failed=True))

    async def _heard(
        self, deltas: AsyncGenerator[ChoiceDelta, None], record: RequestRecord, rollout: Rollout
    ) -> AsyncGenerator[ChoiceDelta, None]:
        answer = ComparedAnswer(record.received)
        model = record.work.model if record.work is not None else ""
        prompt_tokens = record.work.prompt_tokens if record.work is not None else 0
        try:
            async with aclosing(deltas):
                async for delta in deltas:
                    answer.take(delta)
                    yield delta
        except Exception as error:
            if is_fault(error) and model == rollout.candidate:
                rollout.answered_by_candidate(Outcome(prompt_tokens=prompt_tokens, failed=True))
            raise
        if model not in (rollout.stable, rollout.candidate):
            return
        outcome, candidate = outcome_of(answer, prompt_tokens), model == rollout.candidate
        if candidate:
            rollout.answered_by_candidate(outcome)
        for pair in self._pairs[rollout.model].add(outcome, candidate=candidate):
            rollout.matched(*pair)

    def _shadowed(self, result: ShadowResult) -> None:
        rollout = self.rollouts.get(result.route)
        if rollout is None or rollout.candidate != result.model:
            return
        # A copy waits for idle capacity: its latencies tell nothing of the version.
        stable, candidate = (
            msgspec.structs.replace(outcome_of(each, 0), ttft_s=None, tpot_s=None)
            for each in (result.answer, result.copy)
        )
        equal = result.answer.token_ids == result.copy.token_ids
        rollout.shadowed(stable, candidate, equal, f"request {rollout.answered + 1} of the shadow")

    def _shadow_failed(self, route: str, model: str, error: Exception) -> None:
        rollout = self.rollouts.get(route)
        if rollout is not None and rollout.candidate == model and is_fault(error, copied=True):
            rollout.shadowed(Outcome(prompt_tokens=0), Outcome(prompt_tokens=0, failed=True))

    def _rollout_of(self, record: RequestRecord) -> Rollout | None:
        if record.route is None or record.best_priority is not None:  # batches and copies are not compared
            return None
        rollout = self.rollouts.get(self._models.canonical(record.route.name))
        return None if rollout is None or rollout.ended else rollout

    # What follows ---------------------------------------------------------------------------------------------------

    async def look(self) -> None:
        """Once: judge, or follow the process that does."""
        try:
            rows = await self._stored.read()
            changed = self._may_judge and await self._hold_lease(rows)
            if changed:  # what the process wrote that judged before, if any, counts
                rows = await self._stored.read()
            if changed or not self.judges:
                self._follow(rows)
            if self.judges:
                await self._do_commands(rows)
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

    def judge(self) -> None:
        """Move on each rollout whose check is due."""
        now = self._clock()
        for model, rollout in self.rollouts.items():
            if rollout.ended or now - self._checked.get(model, 0.0) < rollout.settings.check_interval_s:
                continue
            self._checked[model] = now
            ready = self._is_ready(rollout.candidate)
            if rollout.golden_due and ready and self._is_ready(rollout.stable):
                task = self._golden.get(model)
                if task is None or task.done():
                    self._golden[model] = asyncio.create_task(self._ask_golden(rollout), name=f"golden {model}")
            before = len(rollout.log)
            rollout.check(now, candidate_ready=ready)
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

    def _apply(self) -> None:
        """Give the routes the shares as they are now."""
        routes = dict(self._configured)
        for rollout in self.rollouts.values():
            if rollout.phase is Phase.ROLLED_BACK and not rollout.stable_promoted:
                continue  # what the configuration says holds again
            for name in self._names_of(rollout.model):
                routes[name] = self._route(name, rollout)
        wanted = list(routes.values())
        if wanted != self._applied:
            self._routes.replace(wanted)
            self._applied = wanted

    def _route(self, name: str, rollout: Rollout) -> RouteConfig:
        shares = rollout.shares
        targets = tuple(TargetConfig(model=version, weight=share) for version, share in shares.items())
        shadow = None
        if rollout.shadow_share:
            shadow = ShadowConfig(model=rollout.candidate, share=rollout.shadow_share, max_in_flight=_MAX_COPIES)
        # What the new version cannot begin, the stable one answers.
        fallback = (FallbackConfig(model=rollout.stable),)
        base = self._configured.get(name)
        if base is None:
            return RouteConfig(name=name, targets=targets, sticky="request", shadow=shadow, fallback=fallback)
        return base.model_copy(update={"targets": targets, "shadow": shadow, "fallback": (*fallback, *base.fallback)})

    async def _ask_golden(self, rollout: Rollout) -> None:
        """Have both versions answer the golden prompts; what fails for want of a replica is done again."""
        stable, candidate = (self._models.find(version) for version in (rollout.stable, rollout.candidate))
        path = self._golden_path(rollout.stable)
        try:
            known = [] if path is None else await asyncio.to_thread(read_golden_set, path)
            questions = spread([each for each in known if each.answer is not None], rollout.settings.golden_prompts)
            for question in questions:
                asked = [answers_rightly(version, self._text, question) for version in (stable, candidate)]
                rollout.golden_answered(question.id, *await asyncio.gather(*asked))
                if rollout.gates.failure or rollout.ended:
                    return
        except GoldenSetError as error:
            log.error("a rollout goes on without golden prompts: %s", error, extra={"model": rollout.model})
        except (ApiError, ReplicaLostError, RequestRefusedError) as error:
            log.info("golden prompts are asked again: %s", error, extra={"model": rollout.model})
            return
        rollout.golden_done()

    async def _hold_lease(self, rows: list[StoredRow]) -> bool:
        """Hold the lease while there is something to judge; whether this process judges has changed."""
        judged, known = self.judges, [*self.rollouts.values(), *(row.rollout for row in rows)]
        if any(row.command for row in rows) or not all(each.ended for each in known):
            self.judges = await self._stored.hold_lease(self._clock())
        else:
            await self._stored.give_lease_back()
            self.judges = False
        return self.judges != judged

    async def _do_commands(self, rows: list[StoredRow]) -> None:
        for row in rows:  # another process may have begun one
            known, new = self.rollouts.get(row.rollout.model), self._stored.is_new(row)
            # An end is final: an old state of what has ended is written over.
            if new and (known is None or (known.ended and known.log[0] != row.rollout.log[0])):
                self._take(row.rollout)
        for row in rows:
            if row.command is not None:
                model = row.rollout.model
                try:
                    self.command(model, row.command, row.commanded_by)
                except (UnknownRolloutError, RolloutEndedError) as error:
                    log.warning("a command for a rollout came too late: %s", error, extra={"model": model})
                await self._stored.done(row)

    def _follow(self, rows: list[StoredRow]) -> None:
        for row in rows:
            if self._stored.is_new(row):
                self._take(row.rollout)

    def _take(self, rollout: Rollout) -> None:
        self.rollouts[rollout.model] = rollout
        self._pairs.setdefault(rollout.model, MatchedPairs())
        self._apply()

    async def save(self, rollout: Rollout) -> None:
        """Write a rollout that was begun or told something here, and look at it at once. A process that only follows
        writes no other: its copies are old.

        Raises:
            StoreAwayError: Not now; the process that judges writes it later.
        """
        await self._stored.save(rollout, self._clock())
        self._loop.wake()

    async def _save_changed(self) -> None:
        for rollout in list(self.rollouts.values()):
            await self._stored.save(rollout, self._clock())

    def _is_ready(self, version: str) -> bool:
        served = self._served(version)
        return served is not None and served.ready

    def _served(self, version: str) -> ServedModel | None:
        return next((each for each in self._models if each.name == version), None)

    def _golden_path(self, version: str) -> Any:
        served = self._served(version)
        return None if served is None else golden_set_path(served.config.path, served.config.golden_prompts)

    def _stable_of(self, model: str) -> str:
        """The version that answers requests for a model now.

        Raises:
            UnknownRolloutError: Several share them.
        """
        before = self.rollouts.get(model)
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

    def _names_of(self, model: str) -> list[str]:
        """What clients may call it: its aliases too, where it is a served model."""
        served = self._served(model)
        return [model, *(() if served is None else served.config.aliases)]
