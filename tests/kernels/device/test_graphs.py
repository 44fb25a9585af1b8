"""Which steps are captured, kept and repeated. What captures them is played: there is no GPU."""

from __future__ import annotations

import pytest
import torch

from kvarn.kernels.device.graphs import MAX_CAPTURED, RUNS_BEFORE_CAPTURE, Captured, Step, StepGraphs
from logs import of_kvarn
from repeating_recorder import RepeatingRecorder

CPU = torch.device("cpu")


def test_a_step_is_captured_when_it_has_run_twice_and_then_repeated() -> None:
    recorder, counter = RepeatingRecorder(), torch.zeros(1)
    graphs = StepGraphs(CPU, recorder)
    found = [graphs.run("step", lambda: (counter.add_(1).clone(),))[0].item() for _ in range(RUNS_BEFORE_CAPTURE)]
    assert found == [1, 2]
    assert "step" not in graphs
    counter.zero_()
    captured = [graphs.run("step", lambda: (counter.add_(1).clone(),))[0] for _ in range(3)]
    assert "step" in graphs
    assert recorder.replays == 3
    assert len({each.data_ptr() for each in captured}) == 1
    assert (graphs.num_captured, graphs.num_captures) == (1, 1)


def test_the_steps_that_were_used_longest_ago_are_forgotten_and_captured_again_when_they_have_run() -> None:
    graphs = StepGraphs(CPU, RepeatingRecorder())

    def use(key: int, times: int) -> None:
        for _ in range(times):
            assert graphs.run(key, lambda: (torch.tensor(key),))[0].item() == key

    for key in range(MAX_CAPTURED):
        use(key, RUNS_BEFORE_CAPTURE + 1)
    use(0, 1)
    use(MAX_CAPTURED, RUNS_BEFORE_CAPTURE + 1)
    assert graphs.num_captured == MAX_CAPTURED
    assert 0 in graphs and 1 not in graphs
    use(1, RUNS_BEFORE_CAPTURE)
    assert 1 not in graphs
    use(1, 1)
    assert 1 in graphs and 2 not in graphs
    assert graphs.num_captures == MAX_CAPTURED + 2


@pytest.mark.parametrize("fails", [False, True], ids=["nothing free", "it runs out"])
def test_steps_are_captured_once_memory_is_free(fails: bool, caplog: pytest.LogCaptureFixture) -> None:
    recorder = RepeatingRecorder()
    recorder.room, recorder.fails = fails, fails
    graphs = StepGraphs(CPU, recorder)
    for _ in range(10):
        assert graphs.run("step", lambda: (torch.tensor(3),))[0].item() == 3
    assert graphs.num_captures == 0
    assert [record.message for record in caplog.records if "too little memory" in record.message] == [
        "too little memory of the GPU is free to capture steps: lower gpu_memory_utilization"
    ]
    recorder.room, recorder.fails = True, False
    for _ in range(RUNS_BEFORE_CAPTURE + 1):
        graphs.run("step", lambda: (torch.tensor(3),))
    assert "step" in graphs


def test_capturing_ends_after_a_step_that_cannot_be_captured(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(RepeatingRecorder):
        def __call__(self, step: Step) -> Captured:
            raise RuntimeError("operation not permitted when stream is capturing")

    graphs = StepGraphs(CPU, Broken())
    for _ in range(10):
        assert graphs.run("step", lambda: (torch.tensor(3),))[0].item() == 3
    assert not graphs.enabled
    assert len(of_kvarn(caplog)) == 1 and "not permitted" in caplog.text


def test_nothing_is_captured_without_a_gpu() -> None:
    graphs = StepGraphs(CPU)
    for _ in range(5):
        graphs.run("step", lambda: (torch.tensor(1),))
    assert not graphs.enabled and graphs.num_captured == 0
