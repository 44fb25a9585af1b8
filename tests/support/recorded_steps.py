"""Stands for CUDA graphs where there is no GPU: a step is recorded when it is computed, and repeated from the record.

The record holds torch's operations and the launches of Triton's interpreter, with the tensors and numbers that they
had. So all that a step does not read from memory stays as it was when it was recorded, as on a GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from functools import partial, partialmethod
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from triton.runtime.interpreter import InterpretedFunction

from kvarn.kernels.device import graphs
from kvarn.kernels.device.graphs import Captured, GraphRecorder, Step, StepGraphs

UNWRITTEN = {"aten::empty", "aten::empty_strided", "aten::empty_like", "aten::new_empty"}
run_kernel = InterpretedFunction.run


class Recorder(TorchDispatchMode):
    """What is computed while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Callable[[], Any]] = []
        self.launched: Counter[str] = Counter()
        """Kernels, by module and name."""
        self.in_kernel = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name
        if self.in_kernel or name in UNWRITTEN:
            return out
        assert name != "aten::_local_scalar_dense", "a step that is repeated cannot ask the device for a number"
        call = partial(func, *args, **(kwargs or {}))
        if func._schema.is_mutable:
            self.calls.append(call)
        elif not _memory_of(out) & _memory_of((args, kwargs)):  # else a view, which stays one
            self.calls.append(partial(_again, call, out))
        return out


def _launch(kernel: Any, *args: Any, recorder: Recorder, **kwargs: Any) -> None:
    """Stands for the interpreter's launch of a kernel."""
    recorder.launched[f"{kernel.fn.__module__.rpartition('.')[2]}.{kernel.fn.__name__}"] += 1
    recorder.calls.append(partial(run_kernel, kernel, *args, **kwargs))
    recorder.in_kernel = True
    run_kernel(kernel, *args, **kwargs)
    recorder.in_kernel = False


def _memory_of(values: Any) -> set[int]:
    return {each.untyped_storage().data_ptr() for each in tree_leaves(values) if isinstance(each, torch.Tensor)}


def _again(call: Callable[[], Any], outs: Any) -> None:
    for out, value in zip(tree_leaves(outs), tree_leaves(call()), strict=True):
        if isinstance(out, torch.Tensor):
            out.copy_(value)


class InterpreterRecorder(GraphRecorder):
    """Captures what a step computes in Triton's interpreter."""

    def __init__(self) -> None:
        self.launched: list[Counter[str]] = []
        """The kernels of each captured step."""

    def has_room(self) -> bool:
        return True

    def __call__(self, step: Step) -> Captured:
        recorder = Recorder()
        with pytest.MonkeyPatch.context() as patch, recorder:
            patch.setattr(InterpretedFunction, "run", partialmethod(_launch, recorder=recorder))
            results = step()
        self.launched.append(recorder.launched)
        calls: list[Callable[[], Any]] = []

        def replay() -> None:
            for call in calls:
                call()
            calls[:] = recorder.calls  # to record a step was to compute it once

        return replay, results


class RecordedSteps(StepGraphs):
    """Captures steps when they are first computed, and counts those that are repeated."""

    def __init__(self, device: torch.device) -> None:
        self.recorder = InterpreterRecorder()
        super().__init__(device, self.recorder)
        self.repeated: Counter[Any] = Counter()

    def run(self, key: Hashable, step: Step) -> tuple[torch.Tensor, ...]:
        self.repeated[key] += key in self
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(graphs, "RUNS_BEFORE_CAPTURE", 0)
            return super().run(key, step)
