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
from typing import IO, Literal

import msgspec
import torch

from kvarn.clock import SYSTEM_CLOCK
from kvarn.config.schema import ModelConfig
from kvarn.kernels.device.memory import DeviceMemory
from kvarn.kernels.dispatch import kernels_for
from kvarn.models import CausalEncoder, Decoder, Encoder, load_model
from kvarn.models.loading.checkpoint import Progress
from kvarn.models.parallel import Parallel, ParallelError, Stage
from kvarn.replica.server.cpu import kernel_threads, usable_cores
from kvarn.replica.spec import ReplicaSpec
from kvarn.worker.async_executor import AsyncExecutor
from kvarn.worker.executor import InProcessExecutor
from kvarn.worker.ranks.blocks import BlockPart, SlotMemory, anonymous_file, map_memory
from kvarn.worker.ranks.collectives import RankGroup, RankLayout, RankLostError
from kvarn.worker.ranks.context_parallel import ContextParallel
from kvarn.worker.ranks.pipes import read_frame, send_frame

EXIT_RANK_LOST = 3
"""Exit status of an engine process, one of whose ranks ended while it did not look."""
_NOTICE_S = 2.0
"""For so long a step has time to fail by itself, which the supervisor is told of in words."""
_END_S = 5.0

log = logging.getLogger(__name__)


class RankSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank is told when it starts: one line of JSON on its standard input."""

    replica: ReplicaSpec
    rank: int
    store: str
    """The file over which ranks find each other."""
    block_file: int = -1
    """Descriptor of the memory in which blocks are kept beyond the caches; -1 where none are."""
    expert_load: dict[int, list[int]] = {}
    """See `Parallel.expert_load`: the same for all ranks."""


class Loaded(msgspec.Struct, frozen=True):
    """A rank has its part of the weights, or says why not."""

    layer_bytes: int = 0
    head_bytes: int = 0
    memory: DeviceMemory | None = None
    """Of a device of its own; None: its memory is the machine's."""
    block_bytes: int = 0
    """Of its part of a block of the KV cache."""
    problem: str = ""


class KeptBlocks(msgspec.Struct, frozen=True):
    """The memory in which blocks are kept beyond the caches."""

    num_bytes: int
    slot_bytes: int
    part: BlockPart
    """The rank's own, of each slot."""

    def map(self, file: int) -> SlotMemory:
        """For the rank."""
        return SlotMemory(map_memory(file, self.num_bytes), self.slot_bytes, self.part)


class Begin(msgspec.Struct, frozen=True):
    """All have loaded: how large the KV cache is."""

    num_blocks: int
    max_context_length: int
    max_num_seqs: int
    num_snapshots: int = 0
    kept: KeptBlocks | None = None


def layout_of(config: ModelConfig) -> RankLayout:
    """How a model is divided."""
    return RankLayout(config.tensor_parallel_size, config.pipeline_parallel_size, config.prefill_context_parallel_size)


def context_of(config: ModelConfig, rank: int, group: RankGroup) -> ContextParallel | None:
    """A rank's place among those that share long prompts, where there are others."""
    layout = layout_of(config)
    size = layout.prefill_context_parallel_size
    return ContextParallel(layout.context(rank), size, group.gather_context) if size > 1 else None


def device_of(config: ModelConfig, rank: int) -> torch.device:
    """Where a rank computes: on an accelerator of its own, where it computes on one.

    Raises:
        ParallelError: There are fewer of them than ranks.
    """
    place, ranks = kernels_for(config.kernels, config.device).device.torch_device, layout_of(config).world_size
    accelerator = torch.accelerator.current_accelerator()
    if ranks == 1 or accelerator is None or place.type != accelerator.type:
        return place
    count = torch.accelerator.device_count()
    if count < ranks:
        raise ParallelError(
            f"{config.name} is divided among {ranks} processes, but there are {count} {place.type} devices: lower "
            "tensor_parallel_size, pipeline_parallel_size or prefill_context_parallel_size, or set `device`"
        )
    torch.accelerator.set_device_index(rank)
    return torch.device(place.type, rank)


def packed_cache_of(config: ModelConfig) -> Path | Literal["auto"] | None:
    """Where packed weights are kept, as `load_model` takes it."""
    match config.packed_cache:
        case "off":
            return None
        case "auto":
            return "auto"
        case directory:
            return Path(directory).expanduser()


def load_part(
    spec: ReplicaSpec,
    rank: int,
    group: RankGroup | None,
    expert_load: Mapping[int, Sequence[int]],
    progress: Progress | None = None,
) -> Decoder | Encoder | CausalEncoder:
    """A rank's part of the model, or all of it where `group` is None. Raises what `load_model` does, and
    `ParallelError`."""
    config, layout = spec.model_config, layout_of(spec.model_config)
    torch.set_num_threads(threads_of(config, usable_cores()))  # for loading; see below for serving
    stage = Stage(layout.stage(rank), layout.pipeline_parallel_size, group)
    parallel = Parallel(
        layout.shard(rank),
        layout.tensor_parallel_size,
        group,
        fixed_sums=config.tensor_parallel_invariant,
        expert_parallel=config.expert_parallel,
        expert_load=expert_load,
        redundant_experts=config.experts.num_redundant,
        stage=stage,
    )
    model = load_model(
        Path(spec.directory),
        device=str(device_of(config, rank)),
        dtype=config.dtype,
        progress=progress,
        max_context_length=config.max_context_length,
        quantization=config.quantization,
        kv_cache_dtype=config.kv_cache_dtype,
        kernels=config.kernels,
        packed_cache=packed_cache_of(config),
        parallel=parallel,
        kind=config.kind,
        gpu_memory_utilization=config.hardware.gpu_memory_utilization,
    )
    if group is not None and not isinstance(model, Decoder):
        raise ParallelError(
            f"{config.name} embeds texts: leave out its tensor_parallel_size, pipeline_parallel_size and "
            "prefill_context_parallel_size"
        )
    held = model.layer_bytes if isinstance(model, Decoder) else model.spec.num_parameters * model.dtype.itemsize
    parts = layout.world_size // layout.prefill_context_parallel_size
    torch.set_num_threads(threads_of(config, kernel_threads(held * parts)))
    return model


def executor_type(model: Decoder, config: ModelConfig) -> type[InProcessExecutor]:
    """What runs plans on every rank: ahead of the host, where the device computes beside it and all ranks have all
    logits."""
    layout = layout_of(config)
    have_logits = layout.pipeline_parallel_size == 1 and layout.prefill_context_parallel_size == 1
    return AsyncExecutor if model.kernels.device.is_asynchronous and have_logits else InProcessExecutor


def threads_of(config: ModelConfig, threads: int) -> int:
    """Threads of one rank, where the model has so many in all unless it is configured."""
    return max(1, (config.threads or threads) // layout_of(config).world_size)


def keeps_blocks(spec: ReplicaSpec) -> bool:
    """Whether blocks are kept beyond the KV cache, for later or for another engine."""
    return spec.model_config.kv_tiers is not None or spec.role != "both"


class RankProcesses:
    """Ranks 1 and up, and this process's way to them. They load while this process does.

    Raises:
        OSError: No process can be started.
    """

    def __init__(self, spec: ReplicaSpec, expert_load: Mapping[int, Sequence[int]]) -> None:
        layout = layout_of(spec.model_config)
        self.group = RankGroup(layout, 0, device_of(spec.model_config, 0))
        """What this process's part of the model talks through, once it has begun."""
        self._closing = False
        # The directory of the engine's sockets is removed however the engine ends.
        self._own_directory = None if spec.endpoint.directory else tempfile.mkdtemp(prefix="kvarn-ranks-")
        self._store = Path(self._own_directory or spec.endpoint.directory) / "ranks"
        self._block_file = anonymous_file() if keeps_blocks(spec) else -1
        self.pipes: list[IO[bytes]] = []
        """To each, in their order."""
        self.answers: list[IO[bytes]] = []
        """From each."""
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
            with contextlib.suppress(BrokenPipeError):  # that it is gone is noticed when it shall have loaded
                process.stdin.write(line + b"\n")
                process.stdin.flush()

    def await_loaded(self) -> list[Loaded]:
        """What each rank has loaded.

        Raises:
            RankLostError: One ended, or says why it cannot load.
        """
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
        """Memory in which blocks are kept: all ranks can map it, and pages come when they are written."""
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
        """End them. Idempotent."""
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
        log.error("a rank has ended: the engine ends", extra={"rank": rank, "pid": process.pid, "status": status})
        SYSTEM_CLOCK.sleep(_NOTICE_S)
        if not self._closing:
            os._exit(EXIT_RANK_LOST)
