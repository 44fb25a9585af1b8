"""The executor that runs one step while the next is planned, on this machine's processors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch

from kv_connectors import DictConnector
from kvarn.engine.errors import ProtocolError
from kvarn.engine.plan import LAST_SAMPLED, BlockUpdate, Row, StepPlan, StepResult
from kvarn.engine.step_time import StepTimeModel
from kvarn.kernels.batch import PagedBatch
from kvarn.kernels.device.graphs import StepGraphs
from kvarn.kernels.device.staging import Fetched, Staging
from kvarn.models import Decoder
from kvarn.wire.messages import Submit
from kvarn.wire.sampling import SamplingParams
from kvarn.worker.async_executor import AsyncExecutor
from kvarn.worker.errors import InvalidLogitsError
from kvarn.worker.graph_runner import GraphRunner
from kvarn.worker.slots import SlotTable
from kvarn.worker.step_batch import StepBatch
from repeating_recorder import RepeatingRecorder

KINDS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.8, "top_k": 20, "top_p": 0.9},
    {"temperature": 0.9, "min_p": 0.02, "logprobs": 2},
    {"temperature": 0.0, "repetition_penalty": 1.3},
    {"temperature": 0.7, "n": 3},
]


def requests(kinds: list[dict[str, Any]]) -> list[Submit]:
    rng = np.random.default_rng(4)
    return [
        Submit(
            request_id=f"r{index}",
            prompt_token_ids=rng.integers(4, 500, int(rng.integers(2, 80))).tolist(),
            sampling=SamplingParams(seed=index, max_tokens=int(rng.integers(3, 20)), **kinds[index % len(kinds)]),
        )
        for index in range(14)
    ]


class Counting(AsyncExecutor):
    """Counts plans that were made before the last tokens were known, and that were not run ahead."""

    planned_ahead = 0
    waited = 0

    def submit(self, plan: StepPlan) -> None:
        self.planned_ahead += any(LAST_SAMPLED in row.token_ids for row in plan.rows)
        super().submit(plan)

    def execute(self, plan: StepPlan) -> StepResult:
        self.waited += 1
        return super().execute(plan)


@pytest.mark.parametrize("kinds", [KINDS[:3], KINDS], ids=["all drawn on the device", "some not"])
@pytest.mark.parametrize("options", [{}, {"num_blocks": 32}, {"token_budget": 23}], ids=["", "preempted", "in chunks"])
def test_tokens_are_those_of_one_step_at_a_time(stack, tiny_model, kinds, options):
    model, messages = tiny_model("llama"), requests(kinds)
    want = stack(model).generate(messages)
    run = stack(model, executor_type=Counting, **options)
    found = run.generate(messages)
    assert {key: (each.token_ids, each.finish_reason) for key, each in found.items()} == {
        key: (each.token_ids, each.finish_reason) for key, each in want.items()
    }
    assert run.executor.planned_ahead > 5
    assert bool(run.engine.stats().preemptions_total) == ("num_blocks" in options)


def test_steps_that_move_blocks_are_run_ahead(stack: Any, tiny_model: Callable[[str], Decoder]) -> None:
    """They are stored and loaded once the steps before have ended; tokens are drawn on the device all the same."""
    model, messages, connector = tiny_model("llama"), requests(KINDS[:3]), DictConnector()
    want = stack(model).tokens(messages)
    stack(model, connector=connector).generate(messages)
    held = set(connector.blocks)
    run = stack(model, executor_type=Counting, connector=connector, num_blocks=32)
    assert run.tokens(messages) == want
    assert connector.num_loaded and set(connector.blocks) >= held and run.engine.stats().preemptions_total
    assert run.executor.planned_ahead > 5 and run.executor.waited == 0


def test_every_field_of_a_batch_reaches_the_layers() -> None:
    """Everything that a step has beside its tokens reaches the layers."""

    class Memory:
        captured_form = 7
        batch = staticmethod(torch.Tensor.tolist)

    slots = SlotTable(4, 64, 500)
    slots.occupied[:] = True
    rows = [Row(2, 5, [9], [], True), Row(0, 2, [8, 7], [], True, num_proposals=1)]
    step = StepBatch.of(rows, slots)
    step.choose_logits(rows, slots)
    step.adapter_memory, step.adapters = Memory(), np.array([1, 2, 2])  # type: ignore[assignment]
    step.state_places, step.state_saves = step.row_slots, np.array([-1, 6, -1])
    step.exchange, step.shares_prefix = None, True
    step.fill_up(4)
    assert step.key == (4, 64, True, 7)
    step.exchange = object()  # type: ignore[assignment]
    _, batch, _ = step.on_device([*map(torch.from_numpy, step.arrays)])
    for field in fields(batch):
        assert getattr(batch, field.name) is not field.default, field.name
    assert (batch.adapters, batch.query_starts.tolist()) == ([1, 2, 2, -1], [0, 1, 3, 4, 4])
    states = batch.recurrent_states
    assert states is not None and states.places.tolist() == [2, 0, -1, -1] and states.saves.tolist() == [-1, 6, -1, -1]


def test_steps_of_a_shape_read_and_write_the_same_addresses(stack, tiny_model, monkeypatch):
    """A device may repeat a captured step."""
    found: dict[tuple[Any, ...], list[tuple[int, ...]]] = {}
    launch = GraphRunner.launch

    def noting(runner: GraphRunner, kind: str, step: StepBatch, others: Any, compute: Any) -> Any:
        def noted(ids: torch.Tensor, batch: PagedBatch, rows: torch.Tensor, sent: list[torch.Tensor]) -> Any:
            inputs = [ids, rows, *sent, batch.positions, batch.context_lens, batch.block_tables, batch.slot_mapping]
            outputs = compute(ids, batch, rows, sent)
            addresses = [each.data_ptr() for each in (*inputs, *runner.cache.keys, *runner.cache.values)]
            found.setdefault((kind, *(each.shape for each in inputs)), []).append(tuple(addresses))
            return outputs

        return launch(runner, kind, step, others, noted)

    monkeypatch.setattr(GraphRunner, "launch", noting)
    stack(tiny_model("llama"), executor_type=AsyncExecutor).generate(requests(KINDS[:3]))
    assert sum(len(steps) > 1 for steps in found.values()) > 2
    assert all(len(set(steps)) == 1 for steps in found.values())


class Capturing(AsyncExecutor):
    """Captures as on a GPU, and notes which results came while it did."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, fill_up=True, **options)
        self.runner.graphs = StepGraphs(torch.device("cpu"), RepeatingRecorder())
        self.warming: list[bool] = []

    def collect(self) -> StepResult:
        result = super().collect()
        self.warming.append(result.warming)
        return result


def test_captured_steps_and_those_before_are_no_examples_of_a_steps_time(stack, tiny_model, monkeypatch):
    observed: list[float] = []
    monkeypatch.setattr(StepTimeModel, "observe", lambda _self, _shape, elapsed_s: observed.append(elapsed_s))
    run = stack(tiny_model("llama"), executor_type=Capturing)
    sampling = SamplingParams(seed=0, temperature=0.0, max_tokens=9)
    run.generate([Submit(request_id="r", prompt_token_ids=[5, 6, 7], sampling=sampling)])
    # A prompt, two steps as they are, one that is captured while the one before it runs, and more.
    assert run.executor.warming[:9] == [False, False, True, True, False, False, False, False, False]
    assert run.executor.runner.graphs.num_captures == 1
    assert len(observed) == run.executor.warming.count(False)


def test_collecting_without_a_submitted_plan_is_an_error(tiny_model: Callable[[str], Decoder]) -> None:
    executor = AsyncExecutor(tiny_model("llama"), num_blocks=40, max_num_seqs=4)
    with pytest.raises(ProtocolError, match="no plan was submitted"):
        executor.collect()


def test_logits_that_are_not_finite_are_an_error_that_names_the_slot(tiny_model, admission, monkeypatch):
    model = tiny_model("llama")
    executor = AsyncExecutor(model, num_blocks=40, max_num_seqs=4)
    forward = model.forward
    monkeypatch.setattr(model, "forward", lambda *inputs: forward(*inputs).fill_(torch.nan))
    row = Row(3, 0, [5, 6], [BlockUpdate(0, 0)], True)
    executor.submit(StepPlan(1, [], [admission(3, [5, 6], temperature=0.0)], [], [row]))
    with pytest.raises(InvalidLogitsError, match="slot 3"):
        executor.collect()


def test_arrays_arrive_whole_whatever_their_sizes() -> None:
    staging = Staging(torch.device("cpu"), 200, 2)
    for count in (0, 3, 1000, 5):
        arrays = [np.arange(count), np.ones((count, 3), np.int32), np.zeros(count, np.bool_), np.full(2, 0.5)]
        arrived = staging.send(arrays)
        for array, tensor in zip(arrays, arrived, strict=True):
            assert torch.equal(tensor, torch.from_numpy(array))
    first = staging.send([np.arange(4)])[0]
    fetched = Fetched.start([first])
    assert staging.send([np.zeros(4, np.int64)])[0].data_ptr() == first.data_ptr()
    assert fetched.wait()[0].tolist() == [0, 1, 2, 3]
