"""The other ranks of a model that several processes hold together: started by the engine process, which is rank 0, and
ended with it.

A rank that ends, or cannot be reached, ends the engine process; its supervisor starts all of them again. A rank whose
engine process is gone ends at once, also when it was stopped. Brings torch.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import msgspec

from kvarn.clock import SYSTEM_CLOCK
from kvarn.kernels.device.memory import DeviceMemory
from kvarn.replica.server.ranks.parts import device_of, keeps_blocks, layout_of
from kvarn.replica.spec import ReplicaSpec
from kvarn.worker.ranks.blocks import BlockPart, SlotMemory, anonymous_file, map_memory
from kvarn.worker.ranks.collectives import RankGroup, RankLostError, read_frame, send_frame

EXIT_RANK_LOST = 3
"""Exit status of an engine process after the loss of a rank."""
_NOTICE_S = 2.0
"""Time for a step to fail by itself, with an error that the supervisor can show."""
_END_S = 5.0

log = logging.getLogger(__name__)


class RankSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Configuration of a rank: one line of JSON on its standard input."""

    replica: ReplicaSpec
    rank: int
    store: str  # the file over which ranks find each other
    block_file: int = -1
    """Descriptor of the memory in which blocks are kept beyond the caches; -1 where none are."""
    expert_load: dict[int, list[int]] = {}
    """See `Parallel.expert_load`: the same for all ranks."""


class Loaded(msgspec.Struct, frozen=True):
    layer_bytes: int = 0
    head_bytes: int = 0
    memory: DeviceMemory | None = None
    """Memory of its own device; None: it is the machine's."""
    block_bytes: int = 0
    """Bytes of its part of a block of the KV cache."""
    problem: str = ""


class KeptBlocks(msgspec.Struct, frozen=True):
    num_bytes: int
    slot_bytes: int
    part: BlockPart  # the rank's own, of each slot

    def map(self, file: int) -> SlotMemory:
        return SlotMemory(map_memory(file, self.num_bytes), self.slot_bytes, self.part)


class Begin(msgspec.Struct, frozen=True):
    """Message that all ranks have loaded, with the size of the KV cache."""

    num_blocks: int
    max_context_length: int
    max_num_seqs: int
    num_snapshots: int = 0
    kept: KeptBlocks | None = None


class RankProcesses:
    """Ranks 1 and up, and this process's way to them. They load while this process does. Raises OSError where no
    process can be started."""

    def __init__(self, spec: ReplicaSpec, expert_load: Mapping[int, Sequence[int]]) -> None:
        layout = layout_of(spec.model_config)
        self.group = RankGroup(layout, 0, device_of(spec.model_config, 0))  # group of the ranks, joined by `begin`
        self._closing = False
        # The directory of the engine's sockets is removed however the engine ends.
        self._own_directory = None if spec.endpoint.directory else tempfile.mkdtemp(prefix="kvarn-ranks-")
        self._store = Path(self._own_directory or spec.endpoint.directory) / "ranks"
        self._block_file = anonymous_file() if keeps_blocks(spec) else -1
        self.pipes: list[IO[bytes]] = []
        self.answers: list[IO[bytes]] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        command = [sys.executable, "-P", "-m", "kvarn.replica.server.ranks.follower"]
        for rank in range(1, layout.world_size):
            files = () if self._block_file < 0 else (self._block_file,)
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=files)
            assert process.stdin is not None
            assert process.stdout is not None
            self._processes.append(process)
            self.pipes.append(process.stdin)
            self.answers.append(process.stdout)
            load = {layer: list(tokens) for layer, tokens in expert_load.items()}
            own = RankSpec(
                replica=spec, rank=rank, store=str(self._store), block_file=self._block_file, expert_load=load
            )
            line = msgspec.json.encode(own)
            with contextlib.suppress(BrokenPipeError):  # `await_loaded` notices that it is gone
                process.stdin.write(line + b"\n")
                process.stdin.flush()

    def await_loaded(self) -> list[Loaded]:
        """Wait until each rank has loaded its part. Raises `RankLostError` where one ended or cannot load."""
        loaded: list[Loaded] = []
        for rank, answers in enumerate(self.answers, start=1):
            frame = read_frame(answers)
            if frame is None:
                raise RankLostError(f"rank {rank} of the model ended while it loaded: the log says why")
            found = msgspec.msgpack.decode(frame, type=Loaded)
            if found.problem:
                raise RankLostError(f"rank {rank} of the model cannot load: {found.problem}")
            loaded.append(found)
        return loaded

    def memory(self, num_bytes: int) -> memoryview:
        os.ftruncate(self._block_file, num_bytes)
        return map_memory(self._block_file, num_bytes)

    def begin(self, message: Begin, parts: Sequence[BlockPart] = ()) -> SlotMemory | None:
        """Let them make their caches, and join the group with them; from now on the end of one ends this process.
        `parts`: of all ranks, where the message says that blocks are kept. Returns where this process keeps its part.
        """
        for number, pipe in enumerate(self.pipes, start=1):
            if message.kept is not None:
                message = msgspec.structs.replace(
                    message, kept=msgspec.structs.replace(message.kept, part=parts[number])
                )
            send_frame(pipe, msgspec.msgpack.encode(message))
        for rank, process in enumerate(self._processes, start=1):
            thread = threading.Thread(target=self._watch, args=(rank, process), name=f"kvarn-rank-{rank}", daemon=True)
            thread.start()
        self.group.join(self._store)
        if message.kept is None:
            return None
        return msgspec.structs.replace(message.kept, part=parts[0]).map(self._block_file)

    def close(self) -> None:
        self._closing = True
        self.group.leave()
        for process in self._processes:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()
        deadline = SYSTEM_CLOCK.now() + _END_S
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - SYSTEM_CLOCK.now()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._block_file >= 0:
            os.close(self._block_file)
            self._block_file = -1
        self._store.unlink(missing_ok=True)
        if self._own_directory is not None:
            shutil.rmtree(self._own_directory, ignore_errors=True)

    def _watch(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        status = process.wait()
        if self._closing:
            return
        log.error(
            "a rank of the model has ended; the engine process exits",
            extra={"rank": rank, "pid": process.pid, "status": status},
        )
        SYSTEM_CLOCK.sleep(_NOTICE_S)
        if not self._closing:
            os._exit(EXIT_RANK_LOST)
