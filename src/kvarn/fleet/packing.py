"""What a replica needs of a machine, and on which device of one there is room for it. Pure, but for the sizes of a
checkpoint's files."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvarn.config.schema import ModelConfig

GIB = 1024**3
PROCESS_BYTES = GIB // 2
"""Of an engine process besides weights and KV cache: the libraries, and activations of a step."""

_BITS = {"float32": 32, "float16": 32, "half": 32, "bfloat16": 16, "int8": 8.25, "fp8": 8.25, "int4": 4.5}
"""Of a weight in memory, with its scales. float16 is held as float32."""


@dataclass(frozen=True, slots=True)
class Needs:
    """Of one replica."""

    memory_bytes: int
    cpus: float = 0.0
    gpus: float = 0.0


@dataclass(frozen=True, slots=True)
class Device:
    """A machine's memory and cores, or one accelerator."""

    name: str
    memory_bytes: int
    cpus: float = float("inf")


def needs_of(model: ModelConfig, directory: Path, machine_bytes: int) -> Needs:
    """What a replica of a model needs.

    Args:
        model: Its configuration.
        directory: Of its checkpoint.
        machine_bytes: Memory of the machine it runs on, of which the KV cache takes a tenth by default.
    """
    hardware = model.hardware
    if hardware.memory_gib is not None:
        memory = int(hardware.memory_gib * GIB)
    else:
        kv_bytes = int(model.kv_cache_gib * GIB) if model.kv_cache_gib is not None else machine_bytes // 10
        memory = weight_bytes(model, directory) + kv_bytes + PROCESS_BYTES
    return Needs(memory, hardware.cpus or model.threads or 0.0, hardware.gpus)


def weight_bytes(model: ModelConfig, directory: Path) -> int:
    """Memory of a model's weights: the checkpoint's size, in the type that they are held in."""
    size = sum(file.stat().st_size for file in directory.glob("*.safetensors"))
    config = directory / "config.json"
    if not config.exists():
        return size
    found = json.loads(config.read_text(encoding="utf-8"))
    if "quantization_config" in found:
        return size
    stored = str(found.get("dtype") or found.get("torch_dtype") or "bfloat16")
    held = model.quantization or (model.dtype if model.dtype != "auto" else "bfloat16")
    return int(size * _BITS[held] / (32 if stored == "float32" else 16))


def place(needs: Needs, devices: Sequence[Device], used: Mapping[str, Collection[Needs]]) -> Device | None:
    """The device on which there is room, of several the one on which least is left after it (best fit); None: nowhere.

    Args:
        needs: Of the replica.
        devices: All.
        used: What replicas that are placed need, by the device's name.
    """

    def left(device: Device) -> tuple[int, float]:
        on_it = used.get(device.name, ())
        memory = device.memory_bytes - sum(each.memory_bytes for each in on_it) - needs.memory_bytes
        return memory, device.cpus - sum(each.cpus for each in on_it) - needs.cpus

    room = [(left(device), device) for device in devices]
    fitting = [(after, device) for after, device in room if min(after) >= 0]
    return min(fitting, key=lambda each: (each[0], each[1].name))[1] if fitting else None


def this_machine() -> Device:
    """This machine's memory and cores."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Device("cpu", memory, float(os.cpu_count() or 1))


def describe_room(needs: Needs, devices: Sequence[Device], used: Mapping[str, Collection[Needs]]) -> str:
    """What a replica needs and what is free, in words."""
    free = [
        f"{(device.memory_bytes - sum(each.memory_bytes for each in used.get(device.name, ()))) / GIB:.1f} GiB and "
        f"{device.cpus - sum(each.cpus for each in used.get(device.name, ())):g} cores"
        for device in devices
    ]
    cpus = f" and {needs.cpus:g} cores" if needs.cpus else ""
    return f"it needs {needs.memory_bytes / GIB:.1f} GiB{cpus}, and {', '.join(free)} are free"
