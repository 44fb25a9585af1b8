"""Steps that a GPU repeats without being told each kernel again (CUDA graphs)."""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress

import torch

from kvarn.costs.cache_plan import MAX_CAPTURED as MAX_CAPTURED

_log = logging.getLogger(__name__)

Step = Callable[[], tuple[torch.Tensor, ...]]
Captured = tuple[Callable[[], None], tuple[torch.Tensor, ...]]
"""A function that repeats a step, and the tensors with its results."""

RUNS_BEFORE_CAPTURE = 2
"""So often a step runs as it is before it is captured: nothing is captured at start, where it would hold up the first
answers, nor for what happens once."""
MIN_FREE_BYTES = 512 * 1024**2
"""Memory of the device that must be free for a capture."""


class GraphRecorder:
    """Captures steps on a stream of its own. Their graphs share memory: they must be repeated one after the other.

    Unlike `torch.cuda.graph` it neither waits for the device nor empties torch's caches: steps are captured while
    others run.

    Args:
        device: Of the steps.
        reserved_bytes: Taken for the graphs with the first of them. Torch cannot join what it takes piece by piece:
            steps that are captured in the order of their sizes would take the sum of these.
    """

    def __init__(self, device: torch.device, reserved_bytes: int = 0) -> None:
        self._device = device
        self._reserved_bytes = reserved_bytes
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._last: torch.cuda.CUDAGraph | None = None
        """Its memory is the next one's, too; that is torch's rule for as long as a graph lives."""

    def has_room(self) -> bool:
        return torch.cuda.mem_get_info(self._device)[0] >= MIN_FREE_BYTES

    def __call__(self, step: Step) -> Captured:
        """Capture a step, which is not run. Raises RuntimeError (torch.OutOfMemoryError) where that cannot be done."""
        graph = torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            # Other threads may allocate meanwhile: one loads adapters.
            memory = None if self._last is None else self._last.pool()
            graph.capture_begin(pool=memory, capture_error_mode="thread_local")
            try:
                if self._last is None:
                    torch.empty(self._reserved_bytes, dtype=torch.uint8, device=self._device)
                results = step()
            except BaseException:
                with suppress(RuntimeError):  # which says that the capture has failed
                    graph.capture_end()
                raise
            graph.capture_end()
        self._last = graph
        return graph.replay, results


def recorder_for(device: torch.device, reserved_bytes: int = 0) -> GraphRecorder | None:
    return GraphRecorder(device, reserved_bytes) if device.type == "cuda" else None


def device_seconds(work: Callable[[], object], before: Callable[[], object] | None = None) -> float:
    """Seconds of the device between the begin and the end of some work, such as a captured step. `before`: what it is
    given to do first; if that takes longer than the host needs to give the work, nothing of the host is counted."""
    begin, end = (torch.Event(torch.device("cuda"), enable_timing=True) for _ in range(2))
    if before is not None:
        before()
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


class StepGraphs:
    """Captured steps by what they depend on, the ones used last. Elsewhere than on a GPU steps run as they are.

    Args:
        device: Where steps run.
        recorder: What captures them; default: `GraphRecorder`, for GPUs.
    """

    def __init__(self, device: torch.device, recorder: GraphRecorder | None = None) -> None:
        self._recorder = recorder or recorder_for(device)
        self.enabled = self._recorder is not None
        self.num_captures = 0
        """Steps captured so far, those that were forgotten again included."""
        self._lacked_room = False
        self._runs: Counter[Hashable] = Counter()
        self._captured: OrderedDict[Hashable, Captured] = OrderedDict()

    @property
    def num_captured(self) -> int:
        return len(self._captured)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._captured

    def run(self, key: Hashable, step: Step) -> tuple[torch.Tensor, ...]:
        """Run or repeat a step. It reads and writes the same memory whenever it is called with an equal key; its
        results are good until another step runs."""
        if not self.enabled:
            return step()
        found = self._captured.get(key)
        if found is None and self._runs[key] < RUNS_BEFORE_CAPTURE:
            self._runs[key] += 1
            return step()
        found = found or self._capture(key, step)
        if found is None:
            return step()
        self._captured.move_to_end(key)
        replay, results = found
        replay()
        return results

    def _capture(self, key: Hashable, step: Step) -> Captured | None:
        assert self._recorder is not None, "enabled"
        self._runs[key] = 0  # else a step that is forgotten, or has no room, would be tried again at once
        if not self._recorder.has_room():
            self._tell_of_no_room()
            return None
        try:
            captured = self._captured[key] = self._recorder(step)
        except torch.OutOfMemoryError:
            self._tell_of_no_room()
            return None
        except RuntimeError:
            _log.exception("a step cannot be captured: none is from now on, which is slower", extra={"step": str(key)})
            self.enabled = False
            return None
        self.num_captures += 1
        if len(self._captured) > MAX_CAPTURED:
            self._captured.popitem(last=False)
        _log.debug("captured a step", extra={"step": str(key), "graphs": len(self._captured)})
        return captured

    def _tell_of_no_room(self) -> None:
        if not self._lacked_room:
            _log.warning("too little memory of the GPU is free to capture steps: lower gpu_memory_utilization")
        self._lacked_room = True
