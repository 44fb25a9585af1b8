"""The GPUs of this machine, as `nvidia-smi` reports them: the gateway has no torch."""

from __future__ import annotations

import csv
import importlib.metadata
import logging
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from kvarn.config.model import ModelConfig

MIN_CAPABILITY = (9, 0)
"""Least compute capability for `device: auto`; equal to that in `kvarn.kernels.dispatch`."""
_QUERY = "index,uuid,memory.total,compute_cap"
_MIB = 1024**2
_TIMEOUT_S = 20.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Gpu:
    number: int  # index in `nvidia-smi`
    uuid: str
    memory_bytes: int
    capability: tuple[int, int] = MIN_CAPABILITY


def find_gpus() -> tuple[Gpu, ...]:
    """The GPUs that this process may use (`CUDA_VISIBLE_DEVICES`: numbers or UUIDs). None if `nvidia-smi` is missing or
    fails, or a part of a GPU (MIG) is named: then engines use what the environment says."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return ()
    try:
        arguments = [command, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
        found = subprocess.run(arguments, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True).stdout
        gpus = [_gpu(line) for line in csv.reader(found.splitlines(), skipinitialspace=True)]
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        _log.warning("nvidia-smi failed; replicas are not placed on GPUs: %s", error)
        return ()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return tuple(gpus if visible is None else _visible(gpus, visible.split(",")))


def ranks_on_gpus(model: ModelConfig, gpus: Sequence[Gpu]) -> int:
    """GPUs that a replica of a model takes on a machine with these: one for each rank, or none."""
    if model.device == "cpu" or model.kernels == "cpu":
        return 0
    automatic = bool(gpus) and gpus[0].capability >= MIN_CAPABILITY and not _is_torch_for_processors()
    ranks = model.tensor_parallel_size * model.pipeline_parallel_size * model.prefill_context_parallel_size
    return ranks if automatic or model.device == "cuda" else 0


def _gpu(fields: list[str]) -> Gpu:
    number, uuid, mebibytes, capability = fields
    major, _, minor = capability.partition(".")
    return Gpu(int(number), uuid, int(mebibytes) * _MIB, (int(major), int(minor)))


def _visible(gpus: Sequence[Gpu], names: Sequence[str]) -> list[Gpu]:
    chosen = []
    for name in (name.strip() for name in names):
        gpu = next((each for each in gpus if name == str(each.number) or (name and each.uuid.startswith(name))), None)
        if gpu is None:
            break  # as CUDA has it: what follows an unknown name is not used
        chosen.append(gpu)
    return chosen


def _is_torch_for_processors() -> bool:
    try:
        return importlib.metadata.version("torch").endswith("+cpu")
    except importlib.metadata.PackageNotFoundError:
        return True
