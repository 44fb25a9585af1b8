"""The process of a rank: `python -m kvarn.replica.server.ranks.follower`. The engine process starts and ends it.

Standard input carries one line of JSON, `RankSpec`, then frames: `Begin`, and a plan for each step.
"""

from __future__ import annotations

import gc
import logging
import os
import queue
import signal
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO

import msgspec

from kvarn.models import Decoder
from kvarn.models.adapters import load_adapter
from kvarn.observe.logging import configure_logging
from kvarn.replica.server.parent import exit_with_parent
from kvarn.replica.server.ranks.parts import context_of, device_of, executor_type, layout_of, load_part
from kvarn.replica.server.ranks.processes import Begin, Loaded, RankSpec
from kvarn.worker.kv_blocks import block_bytes
from kvarn.worker.ranks.collectives import RankGroup, read_frame, send_frame
from kvarn.worker.ranks.follower import Follower

log = logging.getLogger(__name__)


def main() -> int:
    """Load a part of the model and run plans until the engine process closes the pipe; returns the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    exit_with_parent()
    # Nothing printed may reach the engine process.
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        line = sys.stdin.buffer.readline()
        if not line.endswith(b"\n"):
            return 0  # the engine process gave up
        spec = msgspec.json.decode(line, type=RankSpec)
        configure_logging(spec.replica.log_level, form=spec.replica.log_format)
        frames = _frames(sys.stdin.buffer)
        config = spec.replica.model_config
        try:
            group = RankGroup(layout_of(config), spec.rank, device_of(config, spec.rank))
            model = load_part(spec.replica, spec.rank, group, spec.expert_load)
        except Exception as error:
            own = type(error).__module__.startswith("kvarn.")
            problem = str(error) if own else f"{type(error).__name__}: {error}"
            send_frame(answers, msgspec.msgpack.encode(Loaded(problem=problem)))
            return 1
        assert isinstance(model, Decoder), "encoders have one rank"
        part = block_bytes(model.new_kv_cache(1))
        loaded = Loaded(model.layer_bytes, model.head_bytes, model.kernels.device.memory(), part)
        send_frame(answers, msgspec.msgpack.encode(loaded))
        return _run(spec, model, group, frames, answers)


def _run(spec: RankSpec, model: Decoder, group: RankGroup, frames: Iterator[bytes], answers: IO[bytes]) -> int:
    begin = msgspec.msgpack.decode(next(frames), type=Begin)
    memory = None if begin.kept is None else begin.kept.map(spec.block_file)
    try:
        executor = executor_type(model, spec.replica.model_config)(
            model,
            num_blocks=begin.num_blocks,
            max_num_seqs=begin.max_num_seqs,
            max_context_length=begin.max_context_length,
            num_snapshots=begin.num_snapshots,
            connector=memory,
            context=context_of(spec.replica.model_config, spec.rank, group),
        )
        group.join(Path(spec.store))
        gc.freeze()
        Follower(executor, partial(load_adapter, model=model), memory, answers).run(frames)
    except Exception:
        log.exception("the rank failed", extra={"rank": spec.rank})
        return 1
    return 0


def _frames(pipe: IO[bytes]) -> Iterator[bytes]:
    """Read messages in a thread: the engine process never waits to write one, and this process ends with it."""
    frames: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def read() -> None:
        while (frame := read_frame(pipe)) is not None:
            frames.put(frame)
        os._exit(0)

    threading.Thread(target=read, name="kvarn-engine-process", daemon=True).start()
    while True:
        yield frames.get()


if __name__ == "__main__":
    sys.exit(main())
