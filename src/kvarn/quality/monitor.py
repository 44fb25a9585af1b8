"""The quality monitor: probes every replica for silent failure, and has those that deviate taken out of service."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import msgspec

import kvarn
from kvarn.clock import SYSTEM_CLOCK, Clock
from kvarn.config.quality import QualityConfig
from kvarn.jobs.periodic import Periodic
from kvarn.quality.expected import Build, ExpectedAnswers, Question
from kvarn.quality.golden import GoldenPrompt, built_in_prompts
from kvarn.quality.probe import UNCACHED_TENANT, GoldenAnswer, ask
from kvarn.quality.reference_file import read_reference, write_reference
from kvarn.replica.client.protocol import ReplicaClient, ReplicaLostError, ReplicaState, RequestRefusedError

_TICK_S = 0.25
_RESTART_AGAIN_S = 86400.0
"""A replica that deviates again within a day of its restart is kept out: its machine needs attention."""

_UNANSWERED = (RequestRefusedError, ReplicaLostError, TimeoutError)

log = logging.getLogger(__name__)


class DriftAction(StrEnum):
    RESTART = "restart"
    """It is drained and started again, with weights that are loaded anew."""
    KEEP_OUT = "keep_out"  # it is drained and stays away
    ALERT = "alert"
    """It goes on, as no other replica answers for the model, and is reported."""


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    replica: str
    prompt: str
    adapter: str
    cached: bool
    """The answer was wrong only with cached blocks of the prompt."""
    detail: str
    action: DriftAction


class MonitoredModel(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def fingerprint(self) -> str:
        """Digest of its checkpoint; empty: not known yet, and its replicas are not probed."""
        ...

    @property
    def replicas(self) -> Mapping[str, ReplicaClient]: ...

    @property
    def prompts(self) -> Sequence[GoldenPrompt]:
        """The golden prompts; empty: the built-in ones are asked."""
        ...


OnDrift = Callable[[Drift], Awaitable[None]]


@dataclass
class _ProbeState:
    due: float = 0.0
    starts: int = 0  # `ReplicaClient.starts` when it was last probed
    next_adapter: int = 0
    restarted_at: float | None = None
    probe: asyncio.Task[None] | None = None
    asked: int = 0  # golden prompts under way


@dataclass
class ProbeCounts:
    results: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """By (model, replica, result): `equal`, `drifted` or `unanswered`."""
    seconds: Counter[tuple[str, str]] = field(default_factory=Counter)
    passed_at: dict[tuple[str, str], float] = field(default_factory=dict)
    """Unix seconds of the last probe without a deviation."""


class QualityMonitor:
    """Probes each replica when it gets ready and then again and again. `on_drift` takes a replica out of service, as
    `Drift.action` says; what it raises is logged. Raises `ReferenceFileError`."""

    def __init__(
        self,
        models: Callable[[], Sequence[MonitoredModel]],
        config: QualityConfig,
        on_drift: OnDrift,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._clock = clock
        self.drifted: dict[str, Drift] = {}
        """Replicas that deviate, by name, until they pass a probe again."""
        self.counts = ProbeCounts()
        self._models = models
        self._config = config
        self._on_drift = on_drift
        self._expected = ExpectedAnswers()
        self._file = None if config.reference_file is None else Path(config.reference_file).expanduser()
        if self._file is not None:
            self._expected.answers = read_reference(self._file)
        self._written = len(self._expected.answers)
        self._probed: dict[str, _ProbeState] = {}
        self._numbers = itertools.count()
        self._loop = Periodic("quality checks", self._begin_due, _TICK_S)
        self.start = self._loop.start

    @property
    def replicas(self) -> list[tuple[str, str]]:
        return [(model.name, name) for model in self._models() for name in model.replicas]

    def asked(self, replica: str) -> int:
        """Golden prompts that a replica answers now."""
        state = self._probed.get(replica)
        return 0 if state is None else state.asked

    async def stop(self) -> None:
        await self._loop.stop()
        probes = [state.probe for state in self._probed.values() if state.probe is not None]
        for probe in probes:
            probe.cancel()
        await asyncio.gather(*probes, return_exceptions=True)

    def _begin_due(self) -> None:
        """Begin a probe of each replica that is newly ready or due."""
        now = self._clock.now()
        names = set()
        for model in self._models():
            for name, client in model.replicas.items():
                names.add(name)
                state = self._probed.setdefault(name, _ProbeState())
                fresh = client.starts != state.starts
                busy = state.probe is not None and not state.probe.done()
                if _is_probed(model, client) and not busy and (fresh or now >= state.due):
                    state.starts = client.starts
                    state.probe = asyncio.create_task(self._probe_replica(model, name, state))
        for name in self._probed.keys() - names:  # gone for good
            del self._probed[name]
            self.drifted.pop(name, None)

    async def _probe_replica(self, model: MonitoredModel, name: str, state: _ProbeState) -> None:
        began, key = self._clock.now(), (model.name, name)
        try:
            result = "equal" if await self.probe(model, name) else "drifted"
        except _UNANSWERED as error:
            result = "unanswered"  # a replica that is lost or full is counted elsewhere, the missing check here
            log.debug("golden prompt not answered", extra={"replica": name, "reason": str(error)})
        except Exception:
            result = "unanswered"
            log.exception("quality check failed; will retry", extra={"replica": name})
        took = self._clock.now() - began
        state.due = self._clock.now() + max(self._config.interval_s, took / self._config.max_share)
        self.counts.results[*key, result] += 1
        self.counts.seconds[key] += took  # type: ignore[assignment]
        if result == "equal":
            self.counts.passed_at[key] = self._clock.time()
            self._keep_expected()
            if self.drifted.pop(name, None) is not None:
                log.warning("replica answers as expected again", extra={"model": model.name, "replica": name})

    async def probe(self, model: MonitoredModel, name: str) -> bool:
        """Probe one replica now; returns whether it answered as expected. One that did not has been reported."""
        client, state = model.replicas[name], self._probed.setdefault(name, _ProbeState())
        client.forget_tenant(UNCACHED_TENANT)
        for prompt, adapter in self._questions(model, client, state):
            cached = await self._ask(name, client, prompt, adapter, cached=True)
            computed = await self._ask(name, client, prompt, adapter, cached=False)
            question = _question(model, client, prompt, adapter, self._config.max_tokens)
            if not self._expected.agrees(question, computed):
                answers = {name: computed} | await self._witnesses(model, name, question, prompt, adapter)
                restarted = [each for each, other in self._probed.items() if other.restarted_at is not None]
                detail = self._expected.describe(question, computed)
                deviating = self._expected.deviating(question, answers, restarted)
                for replica in sorted(deviating):
                    await self._report(model, replica, prompt.name, adapter, detail, cached=False)
                if name in deviating:
                    return False
            elif question.build.exact and not cached.equals(computed):
                detail = f"{cached.cached_tokens} cached tokens: {self._expected.describe(question, cached)}"
                await self._report(model, name, prompt.name, adapter, detail, cached=True)
                return False
        client.forget_tenant(UNCACHED_TENANT)  # its blocks are free for others
        return True

    def _keep_expected(self) -> None:
        """Write the expected answers if there are more than before."""
        if self._file is None or len(self._expected.answers) == self._written:
            return
        try:
            write_reference(self._file, self._expected.answers)
            self._written = len(self._expected.answers)
        except OSError as error:
            log.error("expected answers cannot be written", extra={"path": self._file, "reason": str(error)})

    def _questions(
        self, model: MonitoredModel, client: ReplicaClient, state: _ProbeState
    ) -> list[tuple[GoldenPrompt, str]]:
        """The golden prompts, always the same: the first answer to a prompt cannot be checked. One of them is asked of
        an adapter too; adapters take turns."""
        assert client.card is not None
        count, card = self._config.prompts, client.card
        prompts = model.prompts or built_in_prompts(
            count, card.vocab_size, card.max_context_length, self._config.max_tokens
        )
        questions = [(prompt, "") for prompt in prompts[:count]]
        if adapters := sorted(client.adapters):
            questions.append((prompts[0], adapters[state.next_adapter % len(adapters)]))
            state.next_adapter += 1
        return questions

    async def _ask(
        self, name: str, client: ReplicaClient, prompt: GoldenPrompt, adapter: str, *, cached: bool
    ) -> GoldenAnswer:
        request_id, state = f"quality-{next(self._numbers)}", self._probed.setdefault(name, _ProbeState())
        state.asked += 1
        try:
            async with asyncio.timeout(self._config.timeout_s):
                return await ask(client, prompt, request_id, self._config.max_tokens, adapter=adapter, cached=cached)
        finally:
            state.asked -= 1

    async def _witnesses(
        self, model: MonitoredModel, name: str, question: Question, prompt: GoldenPrompt, adapter: str
    ) -> dict[str, GoldenAnswer]:
        """The answers of other replicas of the same build to a prompt that one answered differently."""
        others = {
            other: client
            for other, client in model.replicas.items()
            if other != name
            and _is_probed(model, client)
            and _question(model, client, prompt, adapter, self._config.max_tokens) == question
        }
        asked = [self._ask(other, client, prompt, adapter, cached=False) for other, client in others.items()]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        found: dict[str, GoldenAnswer] = {}
        for other, answer in zip(others, answers, strict=True):
            if isinstance(answer, GoldenAnswer):
                found[other] = answer
            elif not isinstance(answer, _UNANSWERED):
                raise answer
        return found

    async def _report(
        self, model: MonitoredModel, replica: str, prompt: str, adapter: str, detail: str, *, cached: bool
    ) -> None:
        """Report a replica that deviates, and have it taken out of service."""
        state = self._probed.setdefault(replica, _ProbeState())
        now = self._clock.now()
        others = [each for name, each in model.replicas.items() if name != replica and each.state is ReplicaState.READY]
        if state.restarted_at is None or now - state.restarted_at > _RESTART_AGAIN_S:
            action, state.restarted_at = DriftAction.RESTART, now
        else:
            action = DriftAction.KEEP_OUT if others else DriftAction.ALERT
        drift = Drift(
            model=model.name,
            replica=replica,
            prompt=prompt,
            adapter=adapter,
            cached=cached,
            detail=detail,
            action=action,
        )
        self.drifted[replica] = drift
        log.error("replica answers wrongly", extra=msgspec.to_builtins(drift))
        try:
            await self._on_drift(drift)
        except Exception:
            log.exception("replica that answers wrongly could not be taken out of service", extra={"replica": replica})


def _is_probed(model: MonitoredModel, client: ReplicaClient) -> bool:
    card = client.card
    return (
        client.state is ReplicaState.READY and bool(model.fingerprint) and card is not None and card.kind == "generate"
    )


def _question(
    model: MonitoredModel, client: ReplicaClient, prompt: GoldenPrompt, adapter: str, max_tokens: int
) -> Question:
    card = client.card
    if card is None:
        raise ReplicaLostError("the replica is not ready")
    build = Build(
        weights=model.fingerprint,
        version=kvarn.__version__,
        dtype=card.dtype,
        quantization=card.quantization,
        kernels=card.kernels,
        kv_dtype=card.kv_dtype,
    )
    digest = client.adapters[adapter].digest if adapter in client.adapters else adapter
    return Question(
        model=model.name,
        build=build,
        prompt=prompt.name,
        token_ids=tuple(prompt.token_ids),
        max_tokens=max_tokens,
        adapter=digest,
    )
