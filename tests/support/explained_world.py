"""A gateway and an engine on one virtual clock: requests whose timelines and steps an explanation is made of."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest

from kvarn.answers import timeline as timelines
from kvarn.answers.timeline import RequestTimeline
from kvarn.clock.virtual import VirtualClock
from kvarn.config.engine import EngineConfig
from kvarn.costs.step_times import StepShape, StepTimes
from kvarn.engine.core import EngineCore, EngineParts
from kvarn.engine.live import turn_steps
from kvarn.engine.step_time import StepTimeModel
from kvarn.explain.explain import explain
from kvarn.explain.explanation import Explanation
from kvarn.observe.traces.context import begin
from kvarn.observe.traces.traced import TracedRequest, TracedTurn
from kvarn.wire.messages import Submit, TokenDelta
from kvarn.wire.sampling import SamplingParams
from kvarn.wire.step_records import TurnSteps
from kvarn.worker.modelled import ModelledExecutor

TIMES = StepTimes(fixed_s=0.008, prefill_token_s=1e-4, prefill_pair_s=2e-9, decode_row_s=3e-4, decode_token_s=1e-7)
_HOP_S = 0.0002
"""Seconds from the gateway to the engine, and back."""
_GATEWAY = ("parsed", "resolved", "templated", "tokenized", "prompted")
_STAGES = ("stage.arrivals", "stage.limits", "stage.replica", "stage.admission", "stage.ledger", "moderated", "sent")


@dataclass
class Asked:
    """A request to come."""

    at_s: float
    message: Submit
    delays: Mapping[str, float] = field(default_factory=dict)
    """Seconds that parts take longer, by the event that ends them."""


@dataclass
class Answered:
    """A request that is over."""

    request: TracedRequest
    steps: dict[str, TurnSteps]
    total_s: float

    def explained(self, *, with_steps: bool = True, name_of: Callable[[str], str] = str) -> Explanation:
        return explain(self.request, self.steps if with_steps else {}, name_of=name_of)


def asked(
    name: str,
    at_s: float,
    prompt: int,
    output: int,
    *,
    tenant: str = "acme",
    delays: Mapping[str, float] | None = None,
    **more: object,
) -> Asked:
    """A request with a prompt of so many tokens of its own, and an answer of so many."""
    chance = random.Random(name)
    token_ids = [chance.randrange(3000) for _ in range(prompt)]
    message = Submit(
        request_id=name,
        prompt_token_ids=token_ids,
        sampling=SamplingParams(seed=1, max_tokens=output),
        tenant=tenant,
        **more,
    )
    return Asked(at_s, message, delays or {})


class ExplainedWorld:
    """Plays requests. `step_s`: seconds that a step takes; `slowness`: by the time, how much longer it takes."""

    def __init__(
        self,
        patch: pytest.MonkeyPatch,
        *,
        num_blocks: int = 4096,
        step_s: Callable[[StepShape], float] = TIMES.seconds,
        slowness: Callable[[float], float] = lambda now: 1.0,
        max_in_flight: int = 1,
        parts: Mapping[str, object] | None = None,
        **config: object,
    ) -> None:
        self.clock = VirtualClock()
        self._at_s = 0.0
        patch.setattr(timelines, "now", lambda: self._at_s)

        def seconds(shape: StepShape) -> float:
            return step_s(shape) * slowness(self.clock.now())

        executor = ModelledExecutor(seconds, self.clock, num_blocks=num_blocks, max_in_flight=max_in_flight)
        engine_parts = EngineParts(
            executor, EngineConfig(**config), step_time=StepTimeModel.knowing(TIMES), **(parts or {})
        )
        self.engine = EngineCore(engine_parts, self.clock.now)
        self._open: dict[str, tuple[Asked, RequestTimeline, float]] = {}
        self._cached: dict[str, int] = {}
        self._told: dict[str, int] = {}
        self.answered: dict[str, Answered] = {}
        self.delays: dict[str, Mapping[str, float]] = {}

    def warm(self) -> None:
        """Let the engine learn its step times, and forget how."""
        self.play([asked(f"warm{number}", 0.0, 5 + number, 20) for number in range(3)])

    def play(self, requests: list[Asked]) -> dict[str, Answered]:
        """Answer all; times are from now on."""
        origin_s = self.clock.now()
        coming = deque(sorted((origin_s + each.at_s, number, each) for number, each in enumerate(requests)))
        sent = deque(self._send(at_s, each) for at_s, _, each in coming)
        sent = deque(sorted(sent, key=lambda item: item[0]))
        while sent or self.engine.has_work():
            if not self.engine.has_work():
                self.clock.move_to(sent[0][0])
            while sent and sent[0][0] <= self.clock.now():
                self.engine.add(sent.popleft()[1].message)
                self.clock.sleep(1e-5)
            for delta in self.engine.step().deltas:
                self._take(delta)
        return {each.message.request_id: self.answered[each.message.request_id] for each in requests}

    def _send(self, at_s: float, each: Asked) -> tuple[float, Asked]:
        self._at_s = at_s
        timeline, self.delays[each.message.request_id] = RequestTimeline(), each.delays
        for name in ("authenticated", "read", *_GATEWAY, *_STAGES):
            self._at_s += 0.0001 + each.delays.get(name, 0.0)
            timeline.mark(name)
        self._open[each.message.request_id] = (each, timeline, self._at_s)
        return self._at_s + _HOP_S, each

    def _take(self, delta: TokenDelta) -> None:
        name = delta.request_id
        each, timeline, sent_s = self._open[name]
        self._at_s = self.clock.now() + _HOP_S
        self._cached[name] = self._cached.get(name, 0) + delta.cached_tokens
        if delta.events is not None:
            timeline.add_engine(delta.events, sent_s)
        if delta.token_ids:
            if name not in self._told:
                timeline.mark("first_token")
            self._told[name] = self._told.get(name, 0) + len(delta.token_ids)
        if delta.finish_reason is None:
            return
        for event in ("generated", "settled", "ended"):
            self._at_s += 0.0001 + each.delays.get(event, 0.0)
            timeline.mark(event)
        steps = turn_steps(self.engine.step_log, self.engine.scheduler, name, self.clock.now(), lambda shape: 0.0)
        assert steps is not None
        turn = TracedTurn(
            id=name,
            model="tiny",
            adapter=each.message.adapter,
            replica="tiny-0",
            prompt_tokens=len(each.message.prompt_token_ids),
            cached_tokens=self._cached[name],
            output_tokens=self._told.get(name, 0),
        )
        request = TracedRequest(
            trace=begin(name, None),
            name="POST /v1/chat/completions",
            request_id=name,
            method="POST",
            route="/v1/chat/completions",
            status=200,
            model="tiny",
            wall_clock_offset_s=0.0,
            events=timeline.events,
            turns=[turn],
        )
        self.answered[name] = Answered(request, {name: steps}, timeline.total_s)


def mixed_load(world: ExplainedWorld, count: int, seed: int = 1) -> dict[str, Answered]:
    """Prompts and answers of all sizes, of three tenants, some of better priority, with slow clients among them."""
    chance, at_s, requests = random.Random(seed), 0.0, []
    for number in range(count):
        at_s += chance.expovariate(10)
        delays = {chance.choice(["read", "generated", "stage.admission"]): 0.5} if number % 10 == 0 else {}
        requests.append(
            asked(
                f"r{number}",
                at_s,
                chance.choice([20, 100, 400, 1500]),
                chance.choice([1, 3, 20, 60]),
                tenant=chance.choice(["acme", "globex", "initech"]),
                priority=10 * (number % 7 == 0),
                delays=delays,
            )
        )
    return world.play(requests)
