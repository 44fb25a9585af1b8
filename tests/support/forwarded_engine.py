"""Engines on virtual clocks of their own; one that is forwarded and one that is stepped beside it."""

from __future__ import annotations

import math

from kvarn.clock.virtual import VirtualClock
from kvarn.config.engine import EngineConfig
from kvarn.costs.draws import Draws
from kvarn.costs.replica_model import Distribution
from kvarn.costs.step_times import StepTimes
from kvarn.engine.core import EngineCore, EngineParts
from kvarn.engine.errors import AdmissionError
from kvarn.engine.fast_forward import DecodeRun, Forwarded, decode_run
from kvarn.engine.memory.block_inventory import BlockInventory
from kvarn.engine.plan import StepPlan
from kvarn.engine.step_time import FixedStepTimes, StepTimeModel
from kvarn.wire.messages import Submit, TokenDelta
from kvarn.wire.sampling import SamplingParams
from kvarn.worker.modelled import ModelledExecutor, successor
from object_state import state_of

TIMES = StepTimes(fixed_s=8e-3, prefill_token_s=5e-5, prefill_pair_s=4e-9, decode_row_s=1.1e-4, decode_token_s=5.3e-7)
NOISE = Distribution(values=(1e-4, 3e-4, 3.3e-4, 7e-4, 0.02))

Token = tuple[float, str, int, int]
"""When it came, and of which choice of which request."""


class NotedExecutor(ModelledExecutor):
    """Keeps the plans that it was given."""

    def __init__(self, *args: object, **keywords: object) -> None:
        super().__init__(*args, **keywords)
        self.plans: list[StepPlan] = []

    def shapes(self) -> list[object]:
        """The plans, but for tokens."""
        return [
            (plan.step, [(row.slot, row.start, len(row.token_ids), row.block_updates) for row in plan.rows])
            for plan in self.plans
        ]

    def submit(self, plan: StepPlan) -> None:
        self.plans.append(plan)
        super().submit(plan)


class Engine:
    """An engine on a clock of its own."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        learns: bool = False,
        seconds: object = TIMES,
        overhead: Distribution | None = None,
        max_in_flight: int = 1,
        next_token: object = successor,
        **config: object,
    ) -> None:
        self.clock = VirtualClock(3.0)
        self.executor = NotedExecutor(
            seconds,
            self.clock,
            next_token,
            num_blocks=num_blocks,
            max_in_flight=max_in_flight,
        )
        self.overheads = Draws(overhead or Distribution(), seed=7)
        step_time = StepTimeModel.knowing(TIMES) if learns else FixedStepTimes(TIMES)
        self.core = EngineCore(EngineParts(self.executor, EngineConfig(**config), step_time=step_time), self.clock.now)
        self.told = BlockInventory()
        self.core.cache.report_to(self.told)
        self.tokens: list[Token] = []

    def add(self, message: Submit) -> str:
        try:
            self.core.add(message)
        except AdmissionError as error:
            return str(error)
        return ""

    def step(self) -> list[TokenDelta]:
        output = self.core.step()
        self._note(output.deltas, self.clock.now())
        return [*output.deltas, *output.refused]

    def pause(self) -> None:
        """What passes between a step and the next."""
        self.clock.move_to(self.clock.now() + self.overheads.take())

    def take(self, forwarded: Forwarded) -> None:
        for place, end in enumerate(forwarded.ends_s):
            for delta in forwarded.deltas:
                self.tokens.append((end, delta.request_id, delta.index, delta.token_ids[place]))

    def _note(self, deltas: list[TokenDelta], now: float) -> None:
        self.tokens += [(now, each.request_id, each.index, token) for each in deltas for token in each.token_ids]

    def state(self) -> list[object]:
        core = [self.core.scheduler, self.core.step_log, self.core.stats(), self.core._recorder, self.core._admission]
        return state_of([*core, self.core._requests, self.told, self.clock], without=(NotedExecutor,))


class Pair:
    """One engine that is forwarded, and one that is stepped beside it."""

    def __init__(self, **settings: object) -> None:
        self.forwarded, self.stepped = Engine(**settings), Engine(**settings)
        self.num_forwarded = 0

    def both(self, action: str, *arguments: object) -> None:
        outcomes = [getattr(each.core, action)(*arguments) for each in (self.forwarded, self.stepped)]
        assert outcomes[0] == outcomes[1]

    def add(self, message: Submit) -> None:
        assert self.forwarded.add(message) == self.stepped.add(message)

    def play(self, until_s: float = math.inf, cuts: tuple[float, ...] = ()) -> None:
        """Go on until no step begins before `until_s`. Runs are taken in parts: `cuts` of the time that is left."""
        while self.forwarded.core.has_work() and self.forwarded.clock.now() < until_s:
            run = decode_run(self.forwarded.core, self.forwarded.overheads)
            if run is None:
                assert self.forwarded.step() == self.stepped.step()
            else:
                begins_s, ends_s, taken = self.forwarded.clock.now(), run.ends_s, 0
                for moment in [*(begins_s + cut * (ends_s - begins_s) for cut in cuts), math.inf]:
                    taken += self._take(run, min(until_s, moment), is_first=not taken)
                self.compare()
            for engine in (self.forwarded, self.stepped):
                engine.pause()
        for engine in (self.forwarded, self.stepped):
            if until_s < math.inf:
                engine.clock.move_to(until_s)

    def _take(self, run: DecodeRun, until_s: float, *, is_first: bool) -> int:
        planned_s = run.steps.planned_s[run.taken :]
        forwarded = run.take(until_s) if run.is_current else None
        if forwarded is None:
            return 0
        self.forwarded.take(forwarded)
        steps = len(forwarded.ends_s)
        self.num_forwarded += steps
        for place, begins_s in enumerate(planned_s[:steps]):
            if place or not is_first:
                self.stepped.pause()
            assert self.stepped.clock.now() == begins_s < until_s
            self.stepped.step()
        return steps

    def compare(self) -> None:
        assert self.forwarded.clock.now() == self.stepped.clock.now()
        forwarded, stepped = self.forwarded.state(), self.stepped.state()
        for place, (ours, theirs) in enumerate(zip(forwarded, stepped, strict=True)):
            assert ours == theirs, (forwarded[place - 20 : place + 3], stepped[place - 20 : place + 3])

    def finish(self) -> None:
        self.compare()
        for engine in (self.forwarded, self.stepped):
            engine.core.check_integrity()
        assert self.forwarded.tokens == self.stepped.tokens
        plans = {plan.step: plan for plan in self.stepped.executor.plans}
        assert all(plan == plans[plan.step] for plan in self.forwarded.executor.plans)


def submit(number: int = 0, prompt: int = 20, max_tokens: int = 40, **fields: object) -> Submit:
    sampling = SamplingParams(seed=number, max_tokens=max_tokens)
    tokens = [(number * 7 + place) % 50 for place in range(prompt)]
    return Submit(**{"request_id": f"r{number}", "prompt_token_ids": tokens, "sampling": sampling} | fields)
