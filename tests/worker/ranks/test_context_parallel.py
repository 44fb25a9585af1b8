"""Ranks that share the tokens of long prompts give one rank's answers, to the last bit."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvarn.engine.plan import BlockUpdate, Row, StepPlan, StepResult
from kvarn.models import Decoder, load_model
from kvarn.wire.messages import Submit
from kvarn.wire.sampling import SamplingParams
from kvarn.worker.executor import InProcessExecutor
from kvarn.worker.ranks.context_parallel import ContextParallel
from kvarn.worker.ranks.protocol import RankProtocol
from kvarn.worker.slots import SlotTable
from kvarn.worker.step_batch import StepBatch
from meeting import Meeting
from profiles import examples
from tiny_checkpoints import DECODERS, make_decoder

LONGEST = 250
RECURRENT = ("qwen3-next",)
"""Families that are refused: `test_recurrent_states.py` has the error."""


class SharedPrefill(InProcessExecutor):
    """Rank 0, and the other ranks in threads: each with a cache of its own, over one copy of the weights."""

    size = 2

    def __init__(self, model: Decoder, **options: Any) -> None:
        self.meeting = Meeting(self.size)
        super().__init__(model, **options | {"context": self._place(0)})
        del options["connector"], options["eagle"]
        places = map(self._place, range(1, self.size))
        self._followers = [InProcessExecutor(model, **options, context=place) for place in places]
        self._pool = ThreadPoolExecutor(self.size)

    def execute(self, plan: StepPlan) -> StepResult:
        following = [self._pool.submit(RankProtocol(each).run_follower, plan, ahead=False) for each in self._followers]
        result = super().execute(plan)
        for each in following:
            each.result()
        return result

    def shutdown(self) -> None:
        self._pool.shutdown()
        for each in (*self._followers, super()):
            each.shutdown()

    def _place(self, rank: int) -> ContextParallel:
        return ContextParallel(rank, self.size, partial(self.meeting.exchange, rank))


class SharedByThree(SharedPrefill):
    size = 3


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    @cache
    def make(name: str) -> Path:
        path = tmp_path_factory.mktemp(name)
        make_decoder(name, path)
        return path

    return make


@pytest.fixture(scope="module", autouse=True)
def compiled() -> Iterator[None]:
    pytest.importorskip("kvarn.kernels.cpu._native", reason="torch's own products do not promise the order of sums")
    yield


def make_requests(lengths: Sequence[int]) -> list[Submit]:
    """Greedy and sampled; one with the log-probabilities of its prompt, which nobody shares."""
    draw = torch.Generator().manual_seed(7)
    common = torch.randint(3, 199, (80,), generator=draw).tolist()
    made = []
    for index, length in enumerate(lengths):
        own = torch.randint(3, 199, (length,), generator=draw).tolist()
        prompt = (common + own)[:length] if index % 2 else own
        sampling = SamplingParams(
            seed=index,
            max_tokens=4,
            temperature=float(index % 2),
            logprobs=3,
            prompt_logprobs=1 if index == 2 else None,
        )
        made.append(Submit(request_id=f"r{index}", prompt_token_ids=prompt, sampling=sampling))
    return made


def told(answers: Any) -> dict[Any, tuple[Any, ...]]:
    return {key: (one.token_ids, one.logprobs, one.prompt_logprobs) for key, one in answers.items()}


@pytest.mark.parametrize("family", [name for name in DECODERS if name not in RECURRENT])
def test_answers_are_those_of_one_rank(stack: Any, family: str, checkpoints: Callable[[str], Path]) -> None:
    """Whole prompts, prompts in chunks that begin and end inside blocks, and after a prefix hit."""
    model = load_model(checkpoints(family), dtype="bfloat16")
    requests = make_requests([200, LONGEST - 8, 140, 213])
    wanted = told(stack(model, token_budget=1024).generate(requests))
    shared = stack(model, token_budget=173, executor_type=SharedPrefill)
    assert told(shared.generate(requests)) == wanted
    assert shared.executor.meeting.count > 0
    assert told(shared.generate(requests)) == wanted, "after a prefix hit"
    shared.executor.shutdown()


def test_three_ranks_share_several_prompts_of_a_step(stack: Any, checkpoints: Callable[[str], Path]) -> None:
    model = load_model(checkpoints("gemma2"), dtype="bfloat16")
    requests = make_requests([200, LONGEST - 8, 140, 12, 213])
    shared = stack(model, token_budget=1024, executor_type=SharedByThree)
    assert told(shared.generate(requests)) == told(stack(model, token_budget=1024).generate(requests))
    assert shared.executor.meeting.count > 0
    shared.executor.shutdown()


@pytest.mark.parametrize("options", [{"kv_cache_dtype": "int8"}, {"quantization": "int4"}], ids=str)
def test_quantized_blocks_and_weights(stack: Any, options: dict[str, Any], checkpoints: Callable[[str], Path]) -> None:
    model = load_model(checkpoints("qwen3"), **options)
    requests = make_requests([200, 230])
    shared = stack(model, token_budget=150, executor_type=SharedPrefill)
    assert told(shared.generate(requests)) == told(stack(model, token_budget=1024).generate(requests))
    assert shared.executor.meeting.count > 0
    shared.executor.shutdown()


def test_what_is_no_long_prompt_is_sent_to_nobody(stack: Any, checkpoints: Callable[[str], Path]) -> None:
    shared = stack(load_model(checkpoints("llama")), executor_type=SharedPrefill)
    shared.generate(make_requests([30, 60, 110, 100]))
    assert shared.executor.meeting.count == 0
    shared.executor.shutdown()


def row_of(slot: int, start: int, count: int) -> Row:
    blocks = range(-(-(start + count) // 16))
    return Row(slot, start, [1] * count, [BlockUpdate(i, 1 + slot * 1000 + i) for i in blocks], sample=True)


def parts(rows: list[Row], size: int) -> tuple[StepBatch, list[StepBatch]]:
    """The tokens of a step, and what each rank takes of them."""
    slots = SlotTable(len(rows), 16_000, 10)
    slots.occupied[:] = True
    slots.update_blocks(rows)
    flat = StepBatch.of(rows, slots)
    places = [ContextParallel(rank, size, lambda tensor: [tensor]) for rank in range(size)]
    return flat, [place.divide(rows, flat, torch.device("cpu")) for place in places]


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(2, 5), st.lists(st.tuples(st.integers(0, 300), st.integers(1, 900)), min_size=1, max_size=4))
def test_each_token_of_a_long_prompt_is_computed_by_one_rank(size: int, shapes: list[tuple[int, int]]) -> None:
    rows = [row_of(slot, start, count) for slot, (start, count) in enumerate(shapes)]
    _flat, own = parts(rows, size)
    for index, row in enumerate(rows):
        theirs = [part.positions[part.row_of_token == index].tolist() for part in own]
        everything = list(range(row.start, row.start + len(row.token_ids)))
        if own[0].exchange is None or all(each == everything for each in theirs):
            assert all(each == everything for each in theirs)
            assert len(everything) < 2 * size * 2 * 16 + 32
            continue
        assert sorted(position for each in theirs for position in each) == everything
        assert theirs[0][-1] == everything[-1], "rank 0 draws"
        assert own[0].positions[own[0].row_ends[index] - 1] == everything[-1]
        counts = [len(each) for each in theirs]
        assert max(counts) - min(counts) <= 4 * 16
    for part in own:  # a sequence's queries are the last of its context
        starts = part.query_starts
        for piece, (first, end) in enumerate(itertools.pairwise(starts)):
            context = part.context_lens[piece]
            assert part.positions[first:end].tolist() == list(range(context - (end - first), context))
            blocks = part.block_tables[piece, part.positions[first:end] // 16]
            assert (blocks * 16 + part.positions[first:end] % 16 == part.slot_mapping[first:end]).all()


def test_ranks_have_the_same_attention_to_compute() -> None:
    """Keys read by queries, within a hundredth: cut in halves the second one would have three times as many."""
    _, own = parts([row_of(0, 0, 8192)], 4)
    reads = [int((part.positions + 1).sum()) for part in own]
    assert max(reads) < 1.01 * min(reads)
    assert sum(reads) == 8192 * 8193 // 2
    assert [len(part.token_ids) for part in own] == [2048] * 4
    assert np.unique(np.concatenate([part.slot_mapping for part in own])).size == 8192
