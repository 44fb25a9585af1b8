"""The cost of a viewer to an engine: milliseconds of its thread in each second.

    python -m benchmarks.live_view

The engine, its log of steps and its answers are the real ones; the model is left out, and seconds pass on a clock of
its own. It is asked as the console does: for the latest steps four times a second, for the map of blocks once. Beside
it stand the time in which the log takes a step, and in which all steps of one turn are told.
"""

from __future__ import annotations

import argparse
import statistics
import time

from kvarn.clock.virtual import VirtualClock
from kvarn.config.engine import EngineConfig
from kvarn.engine.core import EngineParts
from kvarn.engine.step_log import StepLog
from kvarn.replica.server.generate import GenerateService
from kvarn.wire.messages import ModelCard, Submit
from kvarn.wire.questions import AskKVMap, AskLiveSteps, AskTurnSteps, Question
from kvarn.wire.sampling import SamplingParams
from kvarn.worker.modelled import ModelledExecutor

CASES = ((32, 0.05, 4_096), (32, 0.005, 16_384), (128, 0.02, 16_384), (256, 0.01, 100_000))
"""Rows, seconds of a step, KV blocks."""
SECONDS = 12
CARD = ModelCard(
    kind="generate", architecture="modelled", dtype="none", vocab_size=4000, max_context_length=4096, num_parameters=0
)


class TimedLog(StepLog):
    """A log that notes how long it took to add each step."""

    def __init__(self) -> None:
        super().__init__()
        self.spent: list[float] = []

    def add(self, *arguments: object) -> None:
        began = time.perf_counter()
        super().add(*arguments)  # type: ignore[arg-type]
        self.spent.append(time.perf_counter() - began)


class Engine:
    def __init__(self, rows: int, step_s: float, blocks: int) -> None:
        self.clock = VirtualClock()
        executor = ModelledExecutor(lambda shape: step_s, self.clock, num_blocks=blocks)
        parts = EngineParts(executor, EngineConfig(max_num_seqs=rows))
        self.service = GenerateService(parts, CARD, clock=self.clock.now, floor_of=lambda shape: 0.001)
        self.step_log = self.service._core.step_log = TimedLog()
        self.asked_s = 0.0
        for i in range(rows):
            sampling = SamplingParams(seed=0, max_tokens=3500)
            prompt = list(range(300, 428))
            self.service.accept(
                Submit(request_id=f"r{i}", prompt_token_ids=prompt, sampling=sampling, tenant=f"t{i % 7}")
            )

    def ask(self, question: Question) -> float:
        """Seconds of the thread that an answer takes."""
        began = time.thread_time()
        assert self.service.answer(question)
        return time.thread_time() - began

    def watch(self) -> list[float]:
        """Seconds spent on answers in each second but the first, in which the whole state is told."""
        spent, last, due_s, map_due_s = [0.0] * SECONDS, 1, 0.25, 0.5
        while (now := self.clock.now()) < SECONDS:
            self.service.step()
            if now >= due_s:
                spent[int(now)] += self.ask(AskLiveSteps(last - 1))
                last, due_s = self.service.stats().step, now + 0.25
            if now >= map_due_s:
                spent[int(now)] += self.ask(AskKVMap())
                map_due_s = now + 1
        return spent[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    print(f"{'rows':>5} {'step ms':>8} {'blocks':>8} {'log us/step':>12} {'viewer ms/s':>12} {'one turn ms':>12}")
    for rows, step_s, blocks in CASES:
        engine = Engine(rows, step_s, blocks)
        viewer_ms = statistics.median(engine.watch()) * 1e3
        log_us = statistics.median(engine.step_log.spent) * 1e6
        turn_ms = min(engine.ask(AskTurnSteps("r0")) for _ in range(5)) * 1e3
        print(f"{rows:5} {step_s * 1e3:8.0f} {blocks:8} {log_us:12.1f} {viewer_ms:12.2f} {turn_ms:12.2f}")


if __name__ == "__main__":
    main()
