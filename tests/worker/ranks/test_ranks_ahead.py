"""Ranks that run ahead, each drawing the tokens by itself: they are those of ranks that wait for rank 0."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest

from kvarn.config.speculation import SpeculationConfig
from kvarn.engine.plan import LAST_SAMPLED, StepPlan
from kvarn.models import Decoder, load_model
from kvarn.models.adapters import load_adapter
from kvarn.models.parallel import Parallel
from kvarn.wire.messages import Submit
from kvarn.wire.sampling import SamplingParams
from kvarn.worker.async_executor import AsyncExecutor
from kvarn.worker.executor import InProcessExecutor
from kvarn.worker.proposers.ngram import NgramProposer
from kvarn.worker.ranks.collectives import read_frame
from kvarn.worker.ranks.executor import RanksExecutor
from kvarn.worker.ranks.follower import Follower
from meeting import Meeting, ThreadCollectives
from profiles import thorough

DRAWN_BY_ALL: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.8, "top_k": 20, "top_p": 0.9},
    {"temperature": 0.7, "n": 3},
]
DRAWN_BY_ONE: list[dict[str, Any]] = [
    {"temperature": 0.9, "min_p": 0.02, "logprobs": 2},
    {"temperature": 0.0, "repetition_penalty": 1.3},
    {"temperature": 0.0, "prompt_logprobs": 1},
]


def requests(kinds: list[dict[str, Any]]) -> list[Submit]:
    rng = np.random.default_rng(4)
    return [
        Submit(
            request_id=f"r{index}",
            prompt_token_ids=(rng.integers(4, 500, int(rng.integers(2, 40))).tolist() * 3)[: 2 + 7 * index],
            sampling=SamplingParams(seed=index, max_tokens=int(rng.integers(3, 20)), **kinds[index % len(kinds)]),
        )
        for index in range(14)
    ]


class TwoRanks(RanksExecutor):
    """Two ranks in threads of this process, with a real pipe between them."""

    kind: type[InProcessExecutor] = InProcessExecutor
    planned_ahead = 0

    def __init__(self, _: Decoder, *, path: Path, **options: Any) -> None:
        del options["connector"], options["eagle"]
        meeting = Meeting(2)
        models: list[Decoder] = []
        for rank in range(2):
            parallel = Parallel(rank, 2, ThreadCollectives(meeting, rank), fixed_sums=True)
            model = load_model(path, parallel=parallel, dtype="float32")
            assert isinstance(model, Decoder)
            models.append(model)
        first, second = (self.kind(model, **options) for model in models)
        read, write = os.pipe()
        self._plans_out: IO[bytes] = os.fdopen(write, "wb", buffering=0)
        follower = Follower(second, partial(load_adapter, model=models[1]), None, io.BytesIO())
        self._thread = ThreadPoolExecutor(1)
        self._following = self._thread.submit(follower.run, frames(os.fdopen(read, "rb")))
        super().__init__(first, [self._plans_out], 1, partial(load_adapter, model=models[0]))

    def submit(self, plan: StepPlan) -> None:
        self.planned_ahead += any(LAST_SAMPLED in row.token_ids for row in plan.rows)
        super().submit(plan)

    def shutdown(self) -> None:
        self._plans_out.close()
        self._following.result(60)
        self._thread.shutdown()
        super().shutdown()


class TwoRanksAhead(TwoRanks):
    kind = AsyncExecutor


def frames(pipe: IO[bytes]) -> Iterator[bytes]:
    with pipe:
        while (frame := read_frame(pipe)) is not None:
            yield frame


@pytest.mark.parametrize("kinds", [DRAWN_BY_ALL, DRAWN_BY_ALL + DRAWN_BY_ONE], ids=["all draw", "some steps wait"])
@pytest.mark.parametrize(
    "options", [thorough({}), {"num_blocks": 14}, {"token_budget": 23}], ids=["", "preempted", "in chunks"]
)
def test_tokens_are_those_of_ranks_that_wait_for_each_step(stack, tiny_model, tiny_checkpoint, kinds, options):
    model, path, messages = tiny_model("llama"), tiny_checkpoint("llama"), requests(kinds)
    told = []
    for kind in (TwoRanks, TwoRanksAhead):
        run = stack(model, executor_type=partial(kind, path=path), **options)
        answers = run.generate(messages)
        run.executor.shutdown()
        told.append({key: (one.token_ids, one.logprobs, one.finish_reason) for key, one in answers.items()})
    assert told[0] == told[1]
    assert run.executor.planned_ahead > 5
    assert bool(run.engine.stats().preemptions_total) == ("num_blocks" in options)


def test_ranks_that_run_ahead_receive_verified_proposals(stack, tiny_model, tiny_checkpoint):
    model, path, messages = tiny_model("llama"), tiny_checkpoint("llama"), requests(DRAWN_BY_ALL[:1])
    told = []
    for options in ({}, {"proposer": NgramProposer(SpeculationConfig()), "speculation": SpeculationConfig()}):
        run = stack(model, executor_type=partial(TwoRanksAhead, path=path), **options)
        answers = run.generate(messages)
        run.executor.shutdown()
        told.append({key: one.token_ids for key, one in answers.items()})
    assert told[0] == told[1]
    assert run.engine.stats().speculation.draft_tokens_total > 0
