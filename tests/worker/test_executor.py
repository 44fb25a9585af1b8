"""Plans to tensors, against a decoder that records what it was given."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from kvarn.engine.plan import AdapterLoad, BlockCopy, BlockUpdate, NewSequence, Row, RowResult, StepPlan
from kvarn.kernels.backend import torch_kernels
from kvarn.kernels.batch import KVCache, PagedBatch
from kvarn.models import Decoder
from kvarn.worker.errors import InvalidLogitsError, PlanError, WorkerError
from kvarn.worker.executor import InProcessExecutor

Admit = Callable[..., NewSequence]
VOCAB = 50


class RecordingMemory:
    """Adapters of one block; a batch of them is the list of its rows' names."""

    captured_form = None

    def __init__(self) -> None:
        self.names: dict[int, Any] = {-1: ""}
        self.written: list[tuple[Any, list[int]]] = []

    def num_blocks(self, adapter: Any) -> int:
        return 1

    def write(self, adapter: Any, blocks: list[int]) -> None:
        self.written.append((adapter, blocks))

    def place(self, index: int, adapter: Any, blocks: list[int]) -> None:
        self.names[index] = adapter

    def batch(self, indices: torch.Tensor) -> list[Any]:
        return [self.names[index] for index in indices.tolist()]


class RecordingDecoder:
    """Logits that favour the token after the one computed; keeps the inputs of each pass."""

    kernels = torch_kernels()
    reads_shared_prefixes = False

    def __init__(self) -> None:
        self.spec = SimpleNamespace(vocab_size=VOCAB, max_context_length=160)
        self.calls: list[tuple[list[int], PagedBatch, list[int]]] = []
        self.cache = KVCache((), ())
        self.poison: float | None = None
        self.logits_at_once = 0
        self.adapter_memory = RecordingMemory()

    def new_kv_cache(self, num_blocks: int, num_states: int = 0) -> KVCache:
        shape = (num_blocks, 2, 16, 3)
        self.cache = KVCache(*(tuple(torch.randn(shape) for _ in range(2)) for _ in range(2)))
        return self.cache

    def new_adapter_memory(self, cache: KVCache) -> Any:
        return self.adapter_memory

    def last_hidden(
        self, token_ids: torch.Tensor, batch: PagedBatch, cache: KVCache, logits_rows: torch.Tensor, _states: None
    ) -> torch.Tensor:
        self.calls.append((token_ids.tolist(), batch, logits_rows.tolist()))
        return token_ids[logits_rows, None]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        self.logits_at_once = max(self.logits_at_once, len(hidden))
        logits = torch.zeros(len(hidden), VOCAB)
        logits[torch.arange(len(hidden)), (hidden[:, 0] + 1) % VOCAB] = 5.0
        if self.poison is not None:
            logits[-1:, 3] = self.poison
        return logits


@pytest.fixture
def decoder() -> RecordingDecoder:
    return RecordingDecoder()


@pytest.fixture
def executor(decoder: Any) -> InProcessExecutor:
    return InProcessExecutor(decoder, num_blocks=40, max_num_seqs=4)


def plan(
    rows: list[Row],
    admissions: list[NewSequence] | None = None,
    releases: list[int] | None = None,
    copies: list[BlockCopy] | None = None,
) -> StepPlan:
    return StepPlan(1, releases or [], admissions or [], copies or [], rows)


def blocks(first: int, *numbers: int) -> list[BlockUpdate]:
    return [BlockUpdate(first + i, number) for i, number in enumerate(numbers)]


def greedy(admission: Admit, slot: int, prompt: list[int], **sampling: Any) -> NewSequence:
    return admission(slot, prompt, temperature=0.0, **sampling)


def test_each_token_carries_the_adapter_of_its_sequence(executor, decoder, admission):
    names = ["medical", "", "legal"]
    load_adapters(executor, "legal", "medical")
    sequences = [replace(greedy(admission, slot, [1, 2, 3]), adapter=name) for slot, name in enumerate(names)]
    prompts = [Row(slot, 0, [1, 2, 3][: slot + 1], blocks(0, slot), False) for slot in range(3)]
    executor.execute(plan(prompts, sequences))
    assert decoder.calls[0][1].adapters is not None
    assert decoder.calls[0][1].adapters == ["medical", "", "", "legal", "legal", "legal"]
    executor.execute(plan([Row(1, 2, [3], [], True)]))
    assert decoder.calls[1][1].adapters is None
    executor.execute(plan([Row(1, 3, [4], [], True), Row(2, 3, [4], [], True)]))
    assert decoder.calls[2][1].adapters == ["", "legal"]
    assert decoder.adapter_memory.written == [("legal", [30]), ("medical", [31])]
    executor.execute(StepPlan(2, [0], [], [], [], adapter_drops=["medical"]))
    load_adapters(executor, "poems")
    assert decoder.adapter_memory.names == {-1: "", 0: "legal", 1: "poems"}


def load_adapters(executor: InProcessExecutor, *names: Any) -> None:
    """By a plan, and wait for them."""
    for name in names:
        executor.adapters.add(name, name)
    loads = [AdapterLoad(name, [30 + place]) for place, name in enumerate(names)]
    executor.execute(StepPlan(1, [], [], [], [], adapter_loads=loads))
    loaded: list[str] = []
    while len(loaded) < len(names):
        loaded += executor.adapters.drain_loaded()
    assert loaded == list(names)


def test_an_adapter_that_was_not_loaded_is_a_fault_of_the_plan(executor: InProcessExecutor, admission: Admit) -> None:
    sequence = replace(greedy(admission, 0, [1, 2]), adapter="poems")
    with pytest.raises(PlanError, match="adapter 'poems' is not in the blocks"):
        executor.execute(plan([Row(0, 0, [1, 2], blocks(0, 1), True)], [sequence]))
    with pytest.raises(PlanError, match="'poems', which is not held"):
        executor.execute(StepPlan(1, [], [], [], [], adapter_loads=[AdapterLoad("poems", [3])]))


def test_rows_of_all_kinds_become_one_flat_batch(executor, decoder, admission):
    prompts = [list(range(20)), list(range(10, 15)), list(range(30))]
    admissions = [greedy(admission, slot, prompt) for slot, prompt in zip((2, 0, 3), prompts, strict=True)]
    executor.execute(
        plan(
            [
                Row(2, 0, prompts[0], blocks(0, 7, 9), True),
                Row(0, 0, prompts[1], blocks(0, 30), True),
                Row(3, 0, prompts[2][:3], blocks(0, 11), False),
            ],
            admissions,
        )
    )
    result = executor.execute(
        plan([Row(3, 3, prompts[2][3:], blocks(1, 12), True), Row(2, 20, [44], [], True), Row(0, 5, [49], [], True)])
    )
    token_ids, batch, logits_rows = decoder.calls[1]
    assert token_ids == [*range(3, 30), 44, 49]
    assert batch.positions.tolist() == [*range(3, 30), 20, 5]
    assert batch.query_starts.tolist() == [0, 27, 28, 29]
    assert batch.context_lens.tolist() == [30, 21, 6]
    assert batch.block_tables.tolist() == [[11, 12], [7, 9], [30, 0]]
    expected_slots = [11 * 16 + i for i in range(3, 16)] + [12 * 16 + i for i in range(14)] + [9 * 16 + 4, 30 * 16 + 5]
    assert batch.slot_mapping.tolist() == expected_slots
    assert (batch.positions.dtype, batch.slot_mapping.dtype) == (torch.int64, torch.int64)
    assert {batch.query_starts.dtype, batch.context_lens.dtype, batch.block_tables.dtype} == {torch.int32}
    assert logits_rows == [26, 27, 28]
    assert result.rows == [RowResult(3, [30]), RowResult(2, [45]), RowResult(0, [0])]
    assert (result.step, result.elapsed_s > 0) == (1, True)


def test_only_rows_that_sample_get_logits_and_tokens(executor, decoder, admission):
    rows = [Row(0, 0, [1, 2], blocks(0, 3), False), Row(1, 0, [5], blocks(0, 4), True)]
    result = executor.execute(plan(rows, [greedy(admission, 0, [1, 2, 3]), greedy(admission, 1, [5])]))
    assert decoder.calls[0][2] == [2]
    assert [row.token_ids for row in result.rows] == [[], [6]]


def test_a_replaced_block_is_used_and_a_new_sequence_never_sees_old_blocks(executor, decoder, admission):
    prompt = list(range(20))
    executor.execute(plan([Row(1, 0, prompt, blocks(0, 5, 6), True)], [greedy(admission, 1, prompt)]))
    executor.execute(plan([Row(1, 20, [3], [BlockUpdate(1, 8)], True)], copies=[BlockCopy(6, 8)]))
    assert decoder.calls[1][1].block_tables.tolist() == [[5, 8]]
    longer = Row(0, 0, list(range(33)), blocks(0, 20, 21, 22), True)
    executor.execute(
        plan(
            [Row(1, 0, [4], blocks(0, 9), True), longer],
            [greedy(admission, 1, [4]), greedy(admission, 0, list(range(33)))],
            releases=[1],
        )
    )
    assert decoder.calls[2][1].block_tables.tolist() == [[9, 0, 0], [20, 21, 22]]


def test_whole_blocks_are_copied_in_every_layer_before_the_pass(executor, decoder, admission):
    before = [tensor.clone() for tensor in (*decoder.cache.keys, *decoder.cache.values)]
    executor.execute(
        plan(
            [Row(0, 0, [1], blocks(0, 0), True)],
            [greedy(admission, 0, [1])],
            copies=[BlockCopy(3, 4), BlockCopy(4, 5), BlockCopy(3, 9)],
        )
    )
    for old, new in zip(before, (*decoder.cache.keys, *decoder.cache.values), strict=True):
        expected = old.clone()
        expected[[4, 5, 9]] = old[[3, 4, 3]]
        assert torch.equal(new, expected)


def test_prompt_logprobs_of_a_chunk_know_the_first_token_of_the_next(executor, decoder, admission):
    prompt = [1, 2, 40, 41, 7]
    first = executor.execute(
        plan(
            [Row(0, 0, prompt[:3], blocks(0, 1), False, True), Row(1, 0, [9], blocks(0, 2), True)],
            [greedy(admission, 0, prompt, prompt_logprobs=1, logprobs=0), greedy(admission, 1, [9])],
        )
    )
    second = executor.execute(plan([Row(0, 3, prompt[3:], [], True, True), Row(1, 1, [10], [], True)]))
    assert decoder.calls[0][2] == [3, 0, 1, 2]
    assert decoder.calls[1][2] == [1, 2, 0]
    entries = [*(first.rows[0].prompt_logprobs or []), *(second.rows[0].prompt_logprobs or [])]
    assert [entry.chosen.token_id for entry in entries] == prompt[1:]
    assert [entry.top[0].token_id for entry in entries] == [2, 3, 41, 42]
    assert [entry.chosen.rank for entry in entries] == [1, 41, 1, 9]
    assert [row.token_ids for row in (*first.rows, *second.rows)] == [[], [10], [8], [11]]
    assert second.rows[0].logprobs is not None
    assert second.rows[0].logprobs[0].top == []
    assert first.rows[1].logprobs is None


def test_prompt_logprobs_of_a_long_chunk_take_the_logits_of_some_positions_at_a_time(decoder, admission):
    decoder.spec.max_context_length = 1000
    executor = InProcessExecutor(cast("Decoder", decoder), num_blocks=70, max_num_seqs=2)
    prompt = [number % VOCAB for number in range(3, 903)]
    row = Row(1, 0, prompt, blocks(0, *range(57)), True, True)
    result = executor.execute(plan([row], [greedy(admission, 1, prompt, prompt_logprobs=1)])).rows[0]
    assert decoder.logits_at_once <= 256
    entries = result.prompt_logprobs or []
    assert [entry.chosen.token_id for entry in entries] == prompt[1:]
    assert all(entry.top[0].token_id == entry.chosen.token_id for entry in entries)
    assert result.token_ids == [(prompt[-1] + 1) % VOCAB]


def test_prompt_logprobs_do_not_depend_on_how_many_are_computed_together(tiny_model, admission, monkeypatch):
    prompt = np.random.default_rng(1).integers(4, 500, 50).tolist()

    def entries() -> Any:
        executor = InProcessExecutor(tiny_model("llama"), num_blocks=8, max_num_seqs=2)
        row = Row(0, 0, prompt, blocks(0, 1, 2, 3, 4), True, True)
        return executor.execute(plan([row], [greedy(admission, 0, prompt, prompt_logprobs=3)])).rows[0].prompt_logprobs

    together = entries()
    monkeypatch.setattr("kvarn.worker.model_runner.MAX_LOGITS", 7)
    assert entries() == together
    assert len(together) == 49


def test_plans_that_contradict_the_slots_are_refused(executor: InProcessExecutor, admission: Admit) -> None:
    with pytest.raises(PlanError, match=r"slots \[2\] have a row but no admitted sequence"):
        executor.execute(plan([Row(2, 0, [1], [], True)]))
    with pytest.raises(PlanError, match="slot 2 is free"):
        executor.execute(plan([], releases=[2]))
    with pytest.raises(PlanError, match="slot 9 is not one of the 4"):
        executor.execute(plan([], [greedy(admission, 9, [1])]))
    executor.execute(plan([], [greedy(admission, 2, [1])]))
    with pytest.raises(PlanError, match="slot 2 is taken already"):
        executor.execute(plan([], [greedy(admission, 2, [1])]))
    with pytest.raises(PlanError, match="past the context of 160"):
        executor.execute(plan([Row(2, 160, [1], [], True)]))


def test_broken_logits_of_a_prompt_are_an_error_that_names_the_slot(executor, decoder, admission):
    decoder.poison = float("nan")
    row = Row(3, 0, [1, 2], blocks(0, 1), False, True)
    with pytest.raises(InvalidLogitsError, match="slot 3"):
        executor.execute(plan([row], [greedy(admission, 3, [1, 2, 3], prompt_logprobs=0)]))


def test_max_context_length_defaults_to_the_models(decoder: Any) -> None:
    assert InProcessExecutor(decoder, num_blocks=4, max_num_seqs=1).max_context_length == 160
    lowered = InProcessExecutor(decoder, num_blocks=4, max_num_seqs=1, max_context_length=50)
    assert (lowered.max_context_length, lowered.num_blocks) == (50, 4)
    with pytest.raises(WorkerError, match="trained for 160 tokens"):
        InProcessExecutor(decoder, num_blocks=4, max_num_seqs=1, max_context_length=161)
