"""The real engine on a virtual clock behind the real admission policy: what clients feel, without waiting for it."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field

from kvarn.admission.controller import AdmissionController, Refusal, Rules
from kvarn.admission.demand import Demand
from kvarn.admission.engine_load import EngineLoad
from kvarn.admission.traffic import Traffic
from kvarn.config.engine import EngineConfig
from kvarn.costs.step_times import StepTimes
from kvarn.engine.core import EngineCore, EngineOutput, EngineParts
from kvarn.engine.step_time import StepTimeModel
from kvarn.wire.messages import EngineStats, Submit
from kvarn.wire.sampling import SamplingParams
from kvarn.worker.modelled import ModelledExecutor

STATS_EVERY_S = 0.25
POLL_EVERY_S = 0.01

TIMES = StepTimes(fixed_s=0.010, prefill_token_s=5e-5, prefill_pair_s=2e-9, decode_row_s=4e-4, decode_token_s=2e-7)
"""Of an engine that decodes 50 sequences in 35 ms and reads 20,000 prompt tokens a second."""


@dataclass(eq=False)
class Call:
    """One request of a client."""

    at: float
    tenant: str
    prompt: int
    output: int
    weight: float = 1.0
    priority: int = 0
    leaves_at: float | None = None
    """When its client gives up if nothing has come."""
    first: float | None = None
    end: float | None = None
    refusal: Refusal | None = None
    refused_at: float | None = None
    demand: Demand | None = None
    tokens: int = 0
    request_id: str = ""

    @property
    def ttft(self) -> float | None:
        return None if self.first is None else self.first - self.at

    @property
    def tpot(self) -> float:
        if self.end is None or self.first is None or self.output < 2:
            return 0.0
        return (self.end - self.first) / (self.output - 1)

    def met(self, ttft_s: float, tpot_s: float) -> bool:
        return self.end is not None and self.ttft is not None and self.ttft <= ttft_s and self.tpot <= tpot_s


@dataclass
class AdmissionWorld:
    """Plays calls against an engine, with admission or without."""

    rules: Rules = field(default_factory=lambda: Rules(0.5, 0.05, True, 4096, None))
    admission: bool = True
    targets: bool = True
    """The engine is told them."""
    config: EngineConfig = field(default_factory=lambda: EngineConfig(tpot_target_ms=50.0, prefix_cache=False))
    times: StepTimes = TIMES
    num_blocks: int = 16384
    jitter: float = 0.0
    seed: int = 1

    def __post_init__(self) -> None:
        self.now = 0.0
        chance = random.Random(self.seed)
        self.chance = chance
        executor = ModelledExecutor(
            lambda shape: self.times.seconds(shape) * (1 + self.jitter * chance.uniform(-1, 1)),
            next_token=lambda token, sequence: 7,
            num_blocks=self.num_blocks,
            max_context_length=8192,
        )
        model = StepTimeModel.knowing(self.times)
        self.engine = EngineCore(EngineParts(executor, self.config, step_time=model), lambda: self.now)
        load = EngineLoad(self.config, self.rules.tpot_target_s if self.targets else None)
        self.traffic = Traffic(self.config.input_token_weight, self.config.output_token_weight)
        self.controller = AdmissionController(self.rules, load, self.traffic, self.config.priority_ageing_s)
        self.calls: dict[str, Call] = {}
        self.stats = self.engine.stats()
        self.controller.update(self.stats, 0.0)
        self._stats_due = 0.0
        self._coming: list[tuple[float, int, Call]] = []
        self._step_end: float | None = None
        self._output: EngineOutput | None = None
        self._told: EngineStats | None = None
        self._next_poll = 0.0
        self._waiting: dict[Demand, Call] = {}
        self.longest_queue = 0

    def play(self, calls: list[Call], until: float) -> list[Call]:
        """Run until a time; calls come at theirs."""
        self._coming = [(call.at, id(call), call) for call in calls]
        heapq.heapify(self._coming)
        leaving = sorted((call for call in calls if call.leaves_at is not None), key=lambda call: call.leaves_at or 0)
        while True:
            times = [until]
            if self._coming:
                times.append(self._coming[0][0])
            if leaving:
                times.append(leaving[0].leaves_at or 0.0)
            if self._step_end is not None:
                times.append(self._step_end)
            if self._waiting:
                times.append(self._next_poll)
            self.now = max(self.now, min(times))
            if self.now >= until:
                return calls
            if self._step_end is not None and self.now >= self._step_end:
                self._finish_step()
            while self._coming and self._coming[0][0] <= self.now:
                self._arrive(heapq.heappop(self._coming)[2])
            while leaving and (leaving[0].leaves_at or 0.0) <= self.now:
                self._leave(leaving.pop(0))
            if self._waiting and self.now >= self._next_poll:
                self._poll()
            if self._step_end is None and self.engine.has_work():
                self._start_step()

    def _arrive(self, call: Call) -> None:
        if not self.admission:
            self._submit(call)
            return
        self.controller.update(self.stats, self.now)
        call.demand = Demand(
            tenant=call.tenant,
            weight=call.weight,
            priority=call.priority,
            prompt_tokens=self.traffic.expected_prompt(call.prompt),
            output_tokens=self.traffic.expected_output(call.tenant, call.output),
            arrival_s=call.at,
        )
        call.refusal = self.controller.offer(call.demand, self.now)
        if call.refusal is not None:
            call.refused_at = self.now
            return
        self._waiting[call.demand] = call
        self._poll()

    def _poll(self) -> None:
        self._next_poll = self.now + POLL_EVERY_S
        self.controller.update(self.stats, self.now)
        for demand, refusal in self.controller.poll(self.now):
            call = self._waiting.pop(demand)
            if refusal is None:
                self._submit(call)
            else:
                call.refusal = refusal
                call.refused_at = self.now
        self.longest_queue = max(self.longest_queue, len(self._waiting))

    def _leave(self, call: Call) -> None:
        if call.demand is not None and call.demand in self._waiting:
            del self._waiting[call.demand]
            self.controller.withdraw(call.demand)
        elif call.request_id and call.first is None:
            self.engine.abort(call.request_id)

    def _submit(self, call: Call) -> None:
        call.request_id = request_id = f"r{len(self.calls)}"
        self.calls[request_id] = call
        message = Submit(
            request_id=request_id,
            prompt_token_ids=[self.chance.randrange(1000) for _ in range(call.prompt)],
            sampling=SamplingParams(seed=1, max_tokens=call.output),
            tenant=call.tenant,
            weight=call.weight,
            priority=call.priority,
            ttft_left_s=call.at + self.rules.ttft_target_s - self.now if self.targets else None,
            tpot_target_s=self.rules.tpot_target_s if self.targets else None,
        )
        self.engine.add(message)

    def _start_step(self) -> None:
        output = self.engine.step()
        if not output.computed:
            return
        stats = self.engine.stats()
        self._told = stats if self.now >= self._stats_due or not self.engine.has_work() else None
        if self._told is not None:
            self._stats_due = self.now + STATS_EVERY_S
        self._output, self._step_end = output, self.now + stats.step_s

    def _finish_step(self) -> None:
        assert self._output is not None
        output, self._output, self._step_end = self._output, None, None
        if self._told is not None:
            self.stats = self._told
            self.controller.update(self.stats, self.now)
        for delta in output.deltas:
            call = self.calls[delta.request_id]
            call.tokens += len(delta.token_ids)
            if call.first is None:
                call.first = self.now
            if delta.finish_reason is not None:
                call.end = self.now
                if call.demand is not None:
                    self.controller.ended(
                        call.demand,
                        self.now,
                        prompt=call.prompt,
                        cached=0,
                        output=call.tokens,
                        finished=True,
                    )


def poisson(
    rate: float,
    until: float,
    tenant: str,
    prompt: tuple[int, int],
    output: tuple[int, int],
    seed: int,
    **fields: object,
) -> list[Call]:
    """Calls of one tenant at random times, with lengths between two ends."""
    chance, at, calls = random.Random(f"{tenant}{seed}"), 0.0, []
    while (at := at + chance.expovariate(rate)) < until:
        calls.append(Call(at, tenant, chance.randint(*prompt), chance.randint(*output), **fields))
    return calls
