"""Python's share of a step: everything but the model, phase by phase, in microseconds.

    python -m benchmarks.step_overhead --batches 1,8,32,256 --rounds 5

The scheduler, the building of tensors, the slots, the sampler's frame, the taking of results, the gauges, the encoding
and the socket are the real ones; the model is a stand-in that returns fixed logits at once. So what is left is the work
that a faster kernel does not make less:

* schedule: choose rows, give blocks, make the plan
* build: apply the plan to the slots, make the tensors
* draw: one greedy token a row of a vocabulary of 16, remember it, make the result
* update: take the tokens, publish full blocks, gauges
* send: encode, and hand to the socket; another process reads it

Times are of the engine's thread on the processor, so that other programs on the machine distort them less.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
import zmq

from kvarn.config.engine import EngineConfig
from kvarn.engine.core import EngineParts
from kvarn.engine.plan import StepPlan, StepResult, SynchronousExecutor
from kvarn.kernels.adapters import AdapterMemory
from kvarn.kernels.batch import KVCache
from kvarn.kernels.dispatch import kernels_for
from kvarn.models import Decoder
from kvarn.replica.server.generate import GenerateService
from kvarn.replica.transport import CLIENT_LINGER_MS, Outbox
from kvarn.wire.messages import ModelCard, Submit
from kvarn.wire.sampling import SamplingParams
from kvarn.worker.executor import InProcessExecutor

PHASES = ("schedule", "build", "draw", "update", "send")
VOCABULARY = 16
CONTEXT = 8192
MIXED = "mixed"
"""32 rows that decode beside about 500 tokens of prompts."""


@dataclass
class _Spec:
    vocab_size: int = VOCABULARY
    max_context_length: int = CONTEXT


class InstantModel:
    """Stands for a decoder: the same logits for every row, at once. Notes when it was entered and left."""

    def __init__(self) -> None:
        self.spec = _Spec()
        self.kernels = kernels_for()
        self.adapters: dict[str, int] = {}
        self.reads_shared_prefixes = True
        self.entered = self.left = 0.0
        self._logits = torch.linspace(0, 1, VOCABULARY).repeat(4096, 1)

    def new_kv_cache(self, num_blocks: int, num_states: int = 0) -> KVCache:
        """One layer of blocks that hold next to nothing."""
        blocks = torch.zeros(num_blocks, 1, 16, 1)
        return KVCache((blocks,), (blocks.clone(),))

    def new_adapter_memory(self, cache: KVCache) -> AdapterMemory:
        """Room for adapters, of which there are none."""
        return self.kernels.operations.new_adapter_memory(cache, torch.float32)

    def last_hidden(
        self, _tokens: torch.Tensor, _batch: object, _cache: KVCache, rows: torch.Tensor, _hidden_states: None
    ) -> torch.Tensor:
        """[R]: whatever, for each row."""
        self.entered = time.thread_time()
        return rows

    def logits(self, rows: torch.Tensor) -> torch.Tensor:
        """[R, 16] float32: the last token of the vocabulary is the likeliest."""
        logits = self._logits[: len(rows)].clone()
        self.left = time.thread_time()
        return logits


class MarkingExecutor(SynchronousExecutor):
    """The real executor; notes when a step is planned and when its result is there."""

    def __init__(self, model: InstantModel, num_blocks: int, max_num_seqs: int) -> None:
        self._inner = InProcessExecutor(cast(Decoder, model), num_blocks=num_blocks, max_num_seqs=max_num_seqs)
        self.num_blocks = num_blocks
        self.max_context_length = CONTEXT
        self.began = self.ended = 0.0

    def execute(self, plan: StepPlan) -> StepResult:
        """Run the plan."""
        self.began = time.thread_time()
        result = self._inner.execute(plan)
        self.ended = time.thread_time()
        return result

    def shutdown(self) -> None:
        """Nothing to free."""


@dataclass
class Case:
    """A service in its steady state, and the times of its steps."""

    name: str
    batch: int
    service: GenerateService
    model: InstantModel
    executor: MarkingExecutor
    seconds: dict[str, list[float]] = field(default_factory=lambda: {phase: [] for phase in PHASES})

    def run(self, outbox: Outbox, steps: int) -> None:
        """Make and send so many steps."""
        for _ in range(steps):
            began = time.thread_time()
            outputs = self.service.step()
            stepped = time.thread_time()
            for output in outputs:
                outbox.send(output)
            sent = time.thread_time()
            marks = (began, self.executor.began, self.model.entered)
            self._note(*marks, self.model.left, self.executor.ended, stepped, sent)

    def _note(self, *marks: float) -> None:
        began, planned, entered, left, drawn, stepped, sent = marks
        spans = (planned - began, entered - planned, drawn - left, stepped - drawn, sent - stepped)
        for phase, span in zip(PHASES, spans, strict=True):
            self.seconds[phase].append(span)


def steady_case(name: str, steps: int) -> Case:
    """Requests of different tenants that decode for more than `steps` steps; for `mixed` also prompts that wait."""
    mixed = name == MIXED
    batch = 32 if mixed else int(name)
    model = InstantModel()
    executor = MarkingExecutor(model, num_blocks=(batch + 64) * 128, max_num_seqs=batch + 8)
    config = EngineConfig(max_num_seqs=batch + 8, tpot_target_ms=1e9, token_budget=544 if mixed else 8192)
    card = ModelCard(
        kind="generate",
        architecture="stand-in",
        dtype="float32",
        vocab_size=VOCABULARY,
        max_context_length=CONTEXT,
        num_parameters=0,
    )
    service = GenerateService(EngineParts(executor, config), card)
    rng = random.Random(batch)

    def submit(number: int, prompt: int, max_tokens: int) -> None:
        token_ids = [rng.randrange(VOCABULARY) for _ in range(prompt)]
        sampling = SamplingParams(seed=number, temperature=0.0, max_tokens=max_tokens)
        tenant = f"tenant-{number % 8}"
        request_id = f"cmpl-{number:032x}"
        refused = service.accept(
            Submit(request_id=request_id, prompt_token_ids=token_ids, sampling=sampling, tenant=tenant)
        )
        assert refused is None, refused

    for number in range(batch):
        submit(number, 120 + number % 16, steps + 400)
    while service.stats().batch_tokens != batch:
        service.step()
    if mixed:
        for number in range(batch, batch + steps // 3 + 8):
            submit(number, 1536, 1)
    return Case(name, batch, service, model, executor)


@contextmanager
def open_outbox() -> Iterator[Outbox]:
    """The engine's end of the queues; another process reads what is sent and throws it away."""
    with tempfile.TemporaryDirectory(prefix="kvarn-") as directory:
        address = f"ipc://{Path(directory) / 'out'}"
        reader = multiprocessing.get_context("spawn").Process(target=_read_for_ever, args=(address,), daemon=True)
        reader.start()
        context: zmq.Context[Any] = zmq.Context()
        outbox = Outbox(context, address, CLIENT_LINGER_MS)
        try:
            yield outbox
        finally:
            outbox.close()
            reader.terminate()
            reader.join()
            context.term()


def _read_for_ever(address: str) -> None:
    socket = zmq.Context().socket(zmq.PULL)
    socket.set_hwm(0)
    socket.bind(address)
    while True:
        socket.recv()


def main() -> None:
    """Print a row for each batch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", default=f"1,8,32,256,{MIXED}", help="rows that decode; `mixed`: beside prompts")
    parser.add_argument("--rounds", type=int, default=5, help="turns that the batches take")
    parser.add_argument("--steps", type=int, default=60, help="steps of a turn")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cases = [steady_case(name, arguments.rounds * arguments.steps) for name in arguments.batches.split(",")]
    gc.freeze()  # as the engine process does
    with open_outbox() as outbox:
        for _ in range(arguments.rounds):
            for case in cases:
                case.run(outbox, arguments.steps)
    print(f"{'batch':>6}" + "".join(f"{phase:>10}" for phase in (*PHASES, "total")) + "   median µs a step")
    for case in cases:
        totals = [sum(step) for step in zip(*case.seconds.values(), strict=True)]
        columns = [*case.seconds.values(), totals]
        print(f"{case.name:>6}" + "".join(f"{1e6 * statistics.median(column):>10.0f}" for column in columns))


if __name__ == "__main__":
    main()
