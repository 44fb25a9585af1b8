"""Cost of simulating an engine, in microseconds of the processor: of a step, of one that is forwarded, of a request.

    python -m benchmarks.simulation_cost --concurrency 1,4,16,64 --requests 300

So many requests are under way at any moment, each with a prompt of 1,155 tokens and an answer of 211 (the averages of
Azure's trace of conversations). The engine is the real one on a virtual clock; its statistics are asked for every
0.25 s, as a gateway has them. Each row is the best of some rounds: other programs on the machine distort those least.
"""

from __future__ import annotations

import argparse
import gc
import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

from kvarn.clock.virtual import VirtualClock
from kvarn.config.engine import EngineConfig
from kvarn.costs.step_times import StepTimes
from kvarn.engine.core import EngineCore, EngineParts
from kvarn.engine.fast_forward import decode_run
from kvarn.engine.step_log import NoStepLog
from kvarn.engine.step_time import FixedStepTimes
from kvarn.traffic.workload import Segment, Vocabulary
from kvarn.wire.block_names import NamedPrompt, PrefixScope, root_hash
from kvarn.wire.messages import Submit
from kvarn.wire.sampling import SamplingParams
from kvarn.worker.modelled import ModelledExecutor

TIMES = StepTimes(fixed_s=8e-3, prefill_token_s=5e-5, prefill_pair_s=4e-9, decode_row_s=1e-4, decode_token_s=5e-8)
BLOCKS = 30_000
OUTPUT = 211
STATISTICS_S = 0.25
ROOT = root_hash(PrefixScope())
_UNTIMED = nullcontext()


@dataclass
class Costs:
    """Seconds of the processor, by what they were spent on, and how often that was done."""

    seconds: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    total_s: float = 0.0

    are_told: bool = True
    """Whether the parts are timed, which takes time itself."""

    def of(self, what: str) -> AbstractContextManager[None]:
        return self._timed(what) if self.are_told else _UNTIMED

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        began = time.process_time()
        yield
        self.seconds[what] = self.seconds.get(what, 0.0) + time.process_time() - began
        self.counts[what] = self.counts.get(what, 0) + 1

    def each_us(self, what: str) -> float:
        return self.seconds.get(what, 0.0) / max(1, self.counts.get(what, 0)) * 1e6


class Player:
    """An engine that always has so many requests."""

    def __init__(self, *, forwards: bool, named: bool, prompt: int, timed: bool = False) -> None:
        self.clock = VirtualClock()
        executor = ModelledExecutor(TIMES, self.clock, num_blocks=BLOCKS, max_context_length=1 << 20)
        parts = EngineParts(executor, EngineConfig(), step_time=FixedStepTimes(TIMES), step_log=NoStepLog())
        self.core = EngineCore(parts, self.clock.now)
        self.costs = Costs(are_told=timed)
        self._forwards, self._named, self._prompt = forwards, named, prompt
        self._due_s = 0.0

    def play(self, requests: int, concurrency: int) -> Costs:
        began, sent = time.process_time(), 0
        while sent < requests or self.core.has_work():
            while sent < requests and len(self.core.scheduler.running) + len(self.core.scheduler.queue) < concurrency:
                self._send(sent)
                sent += 1
            self._go_on()
        self.costs.total_s = time.process_time() - began
        return self.costs

    def _send(self, number: int) -> None:
        with self.costs.of("send"):
            prompt = Segment(key=number, length=self._prompt)
            tokens: list[int]
            if self._named:
                tokens = NamedPrompt.of(ROOT, [(prompt.key, prompt.length)], (1_000_000 + number, OUTPUT))
            else:
                tokens = prompt.token_ids(Vocabulary(), 0)
            sampling = SamplingParams(seed=number, max_tokens=OUTPUT)
            self.core.add(Submit(request_id=str(number), prompt_token_ids=tokens, sampling=sampling))

    def _go_on(self) -> None:
        run = decode_run(self.core) if self._forwards else None
        if run is None:
            with self.costs.of("step"):
                self.core.step()
            self._tell()
        while run is not None and run.is_current:
            with self.costs.of("forward"):
                run.take(math.inf, self._due_s)
            self._tell()
        if run is not None:
            self.costs.counts["forwarded step"] = self.costs.counts.get("forwarded step", 0) + run.taken

    def _tell(self) -> None:
        if self.clock.now() >= self._due_s:
            with self.costs.of("statistics"):
                self.core.stats()
            self._due_s = self.clock.now() + STATISTICS_S


def best(rounds: int, requests: int, concurrency: int, **settings: object) -> Costs:
    found: list[Costs] = []
    for _ in range(rounds):
        gc.collect()
        gc.freeze()
        gc.disable()
        found.append(Player(**settings).play(requests, concurrency))  # type: ignore[arg-type]
        gc.enable()
    return min(found, key=lambda costs: costs.total_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrency", default="1,4,16,64", help="requests under way, separated by commas")
    parser.add_argument("--requests", type=int, default=300, help="requests of a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompts", default="1155,10000,100000", help="lengths of prompts, separated by commas")
    arguments = parser.parse_args()
    print("under way   step  forwarded step  steps at once  statistics  request  request, stepped")
    for concurrency in map(int, arguments.concurrency.split(",")):
        requests = max(arguments.requests, 2 * concurrency)
        forwarded, stepped, request, request_stepped = (
            best(rounds, requests, concurrency, forwards=forwards, named=True, prompt=1155, timed=timed)
            for rounds, timed in ((1, True), (arguments.rounds, False))
            for forwards in (True, False)
        )
        at_once = forwarded.counts["forwarded step"] / forwarded.counts["forward"]
        print(
            f"{concurrency:9} {stepped.each_us('step'):6.0f} {forwarded.each_us('forward') / at_once:15.2f}"
            f" {at_once:14.1f} {forwarded.each_us('statistics'):11.1f} {request.total_s / requests * 1e6:8.0f}"
            f" {request_stepped.total_s / requests * 1e6:17.0f}"
        )
    print("\nprompt   request by names   by tokens")
    for prompt in map(int, arguments.prompts.split(",")):
        requests = max(3, min(arguments.requests, 300_000 // prompt))
        by_names, by_tokens = (
            best(arguments.rounds, requests, 1, forwards=True, named=named, prompt=prompt) for named in (True, False)
        )
        print(f"{prompt:6} {by_names.total_s / requests * 1e6:18.0f} {by_tokens.total_s / requests * 1e6:11.0f}")


if __name__ == "__main__":
    main()
