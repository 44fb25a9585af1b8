"""The needs of a replica, and the machine and GPUs that have room for it. Pure, but for the sizes of a checkpoint's
files."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvarn.config.model import ModelConfig
from kvarn.fleet.placement.gpus import Gpu, find_gpus
from kvarn.text.errors import CheckpointError
from kvarn.text.json_file import read_json

GIB = 1024**3
PROCESS_BYTES = GIB // 2
"""Memory of an engine process besides weights and KV cache: libraries, activations of a step."""

_BITS = {"float32": 32, "float16": 32, "half": 32, "bfloat16": 16, "int8": 8.25, "fp8": 8.25, "int4": 4.5}
"""Bits of a weight in memory, with its scales. float16 is held as float32."""


GPU_PROCESS_BYTES = 3 * GIB
"""Main memory of a process that computes on a GPU: the driver and its libraries, pinned memory."""
_LEAST_SHARE = 1e-6  # smaller differences of GPU shares are rounding errors


@dataclass(frozen=True, slots=True)
class Needs:
    memory_bytes: int  # main memory
    cpus: float = 0.0
    gpus: int = 0
    """One for each rank; 0: it computes on CPUs."""
    gpu_share: float = 0.0
    """Share of each GPU's memory."""
    weight_bytes: int = 0
    """Additional main memory while it is asleep."""


@dataclass(frozen=True, slots=True)
class Machine:
    name: str
    memory_bytes: int
    cpus: float = float("inf")
    gpus: tuple[Gpu, ...] = ()


@dataclass(frozen=True, slots=True)
class Placement:
    machine: str
    needs: Needs
    gpus: tuple[str, ...] = ()  # UUIDs of the GPUs that it has a share of
    asleep: bool = False
    """Its weights are in main memory, and others may use its shares until it wakes."""

    @property
    def memory_bytes(self) -> int:
        return self.needs.memory_bytes + (self.needs.weight_bytes if self.asleep else 0)


@dataclass(frozen=True, slots=True)
class _FreeGpu:
    gpu: Gpu
    free: float
    free_when_all_wake: float
    """The same if sleeping replicas had their shares; negative where they take turns."""

    def has(self, share: float) -> bool:
        return self.free + _LEAST_SHARE >= share

    def keeps_someone_asleep(self, share: float) -> bool:
        """Whether one that has this share is in the way of others that wake."""
        return self.free_when_all_wake + _LEAST_SHARE < share


@dataclass(frozen=True, slots=True)
class _Room:
    memory_bytes: int
    cpus: float
    gpus: tuple[_FreeGpu, ...]
    """The fullest first."""

    @staticmethod
    def on(machine: Machine, placed: Iterable[Placement]) -> _Room:
        own = [each for each in placed if each.machine == machine.name]
        gpus = []
        for gpu in machine.gpus:
            shares = [(each.needs.gpu_share, each.asleep) for each in own if gpu.uuid in each.gpus]
            free = 1.0 - sum(share for share, asleep in shares if not asleep)
            gpus.append(_FreeGpu(gpu, free, 1.0 - sum(share for share, _ in shares)))
        return _Room(
            machine.memory_bytes - sum(each.memory_bytes for each in own),
            machine.cpus - sum(each.needs.cpus for each in own),
            tuple(sorted(gpus, key=lambda each: (each.free, each.gpu.number))),
        )

    def gpus_for(self, needs: Needs) -> tuple[str, ...] | None:
        """GPUs that have room for its ranks: those on which it keeps no other one asleep, then the fullest; None: there
        are too few."""
        share = needs.gpu_share
        fitting = [each for each in self.gpus if each.has(share)]
        fitting.sort(key=lambda each: each.keeps_someone_asleep(share))
        return tuple(each.gpu.uuid for each in fitting[: needs.gpus]) if len(fitting) >= needs.gpus else None

    def fits(self, needs: Needs) -> bool:
        return self.memory_bytes >= needs.memory_bytes and self.cpus >= needs.cpus and self.gpus_for(needs) is not None


def needs_of(model: ModelConfig, directory: Path, machine_bytes: int, gpus: int = 0) -> Needs:
    """The needs of a replica of a model on a machine with so many bytes of memory, of which the KV cache takes a tenth
    by default. On `gpus`, weights and KV cache are in their memory."""
    hardware = model.hardware
    if hardware.memory_gib is not None:
        memory = int(hardware.memory_gib * GIB)
    elif gpus:
        memory = gpus * GPU_PROCESS_BYTES
    else:
        kv_bytes = int(model.kv_cache_gib * GIB) if model.kv_cache_gib is not None else machine_bytes // 10
        memory = weight_bytes(model, directory) + kv_bytes + PROCESS_BYTES
    cpus = hardware.cpus or model.threads or 0.0
    if not gpus:
        return Needs(memory, cpus)
    return Needs(memory, cpus, gpus, hardware.gpu_memory_utilization, weight_bytes(model, directory))


def weight_bytes(model: ModelConfig, directory: Path) -> int:
    """Memory of a model's weights: the checkpoint's size, in the type that they are held in."""
    size = sum(file.stat().st_size for file in directory.glob("*.safetensors"))
    try:
        found = read_json(directory / "config.json")
    except CheckpointError:  # the engine says what is wrong with it
        found = {}
    if not found or "quantization_config" in found:
        return size
    stored = str(found.get("dtype") or found.get("torch_dtype") or "bfloat16")
    held = model.quantization or (model.dtype if model.dtype != "auto" else "bfloat16")
    return int(size * _BITS[held] / (32 if stored == "float32" else 16))


def place(needs: Needs, machines: Sequence[Machine], placed: Collection[Placement]) -> Placement | None:
    """The machine with room for a replica, of several the one with the least left after it (best fit), and GPUs of it;
    None: no machine has room. `placed`: replicas that have a place."""
    rooms = [(_Room.on(machine, placed), machine) for machine in machines]
    fitting = [(room, machine) for room, machine in rooms if room.fits(needs)]
    if not fitting:
        return None
    room, machine = min(fitting, key=lambda each: (each[0].memory_bytes, each[1].name))
    return Placement(machine.name, needs, room.gpus_for(needs) or ())


def has_gpus(gpus: Collection[str], needs: Needs, machines: Sequence[Machine], placed: Collection[Placement]) -> bool:
    """Whether there is room for a replica's ranks on these GPUs, by UUID."""
    found = {each.gpu.uuid: each for machine in machines for each in _Room.on(machine, placed).gpus}
    return all(found[uuid].has(needs.gpu_share) for uuid in gpus)


def place_without_room(needs: Needs, machine: Machine, placed: Collection[Placement]) -> Placement:
    """A place for what runs whether there is room or not: GPUs that have room, then those with most left."""
    emptiest = sorted(_Room.on(machine, placed).gpus, key=lambda each: (-each.free, each.gpu.number))
    return Placement(machine.name, needs, tuple(each.gpu.uuid for each in emptiest[: needs.gpus]))


def this_machine() -> Machine:
    return Machine("cpu", main_memory(), float(os.cpu_count() or 1), find_gpus())


def main_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def describe_room(needs: Needs, machines: Sequence[Machine], placed: Collection[Placement]) -> str:
    free = []
    for room in (_Room.on(machine, placed) for machine in machines):
        gpus = "".join(f", {max(0.0, each.free):.0%} of GPU {each.gpu.number}" for each in room.gpus)
        free.append(f"{room.memory_bytes / GIB:.1f} GiB and {room.cpus:g} cores{gpus if needs.gpus else ''}")
    cpus = f" and {needs.cpus:g} cores" if needs.cpus else ""
    gpus = f", {needs.gpu_share:.0%} of each of {needs.gpus} GPUs (gpu_memory_utilization)" if needs.gpus else ""
    return f"it needs {needs.memory_bytes / GIB:.1f} GiB{cpus}{gpus}, and {', '.join(free)} are free"
