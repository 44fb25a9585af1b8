"""From a directory to a model."""

from __future__ import annotations

from pathlib import Path

import torch

from kvarn.kernels.dispatch import kernels_for
from kvarn.models.checkpoint import Checkpoint, Progress
from kvarn.models.decoder import Decoder
from kvarn.models.encoder import Encoder
from kvarn.models.encoder_config import ENCODERS, encoder_spec
from kvarn.models.errors import UnsupportedModelError
from kvarn.models.families import FAMILIES, decoder_spec
from kvarn.models.parallel import Parallel

_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def load_model(
    path: Path,
    *,
    dtype: str = "auto",
    progress: Progress | None = None,
    max_context_length: int | None = None,
    parallel: Parallel | None = None,
) -> Decoder | Encoder:
    """Load the checkpoint in directory `path`.

    `dtype`: `float32`, `bfloat16`, or `auto` for bfloat16 where the processor multiplies it natively. `progress` is
    called with (stage, fraction). `max_context_length` lowers the checkpoint's own. `parallel` is this rank's place
    where several hold the model together. Raises a ModelError that says what is wrong with the checkpoint.
    """
    checkpoint = Checkpoint(path, progress)
    architecture = str((checkpoint.config.get("architectures") or ["missing"])[0])
    torch_dtype = native_dtype() if dtype == "auto" else _DTYPES[dtype]
    if architecture in FAMILIES:
        spec = decoder_spec(
            architecture,
            checkpoint.config,
            max_context_length=max_context_length,
            num_parameters=checkpoint.num_parameters,
        )
        return Decoder(spec, checkpoint, torch_dtype, kernels_for("torch"), parallel or Parallel())
    if architecture in ENCODERS:
        encoder = encoder_spec(
            architecture,
            path,
            checkpoint.config,
            max_context_length=max_context_length,
            num_parameters=checkpoint.num_parameters,
        )
        return Encoder(encoder, checkpoint, torch_dtype, kernels_for("torch"))
    known = ", ".join([*FAMILIES, *ENCODERS])
    raise UnsupportedModelError(
        f"architecture {architecture!r} in {path / 'config.json'} is not supported; known ones: {known}"
    )


def native_dtype() -> torch.dtype:
    """bfloat16 where the processor has instructions that multiply it, else float32.

    Without them a bfloat16 product of more than four rows is about seven times slower than a float32 one.
    """
    try:
        cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return torch.float32
    flags = next((line.split() for line in cpuinfo.splitlines() if line.startswith("flags")), [])
    return torch.bfloat16 if {"avx512_bf16", "amx_bf16"} & set(flags) else torch.float32
