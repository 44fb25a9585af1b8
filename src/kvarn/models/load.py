"""From a directory to a model."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Literal

import torch

from kvarn import __version__
from kvarn.kernels.batch import KvDtype
from kvarn.kernels.dispatch import Kernels, kernels_for
from kvarn.kernels.errors import MissingKernelsError
from kvarn.kernels.memory import give_back_freed
from kvarn.kernels.packed import KeepsPackedWeights
from kvarn.models.checkpoint import Checkpoint, Progress
from kvarn.models.decoder import Decoder
from kvarn.models.encoder import Encoder
from kvarn.models.encoder_config import ENCODERS, encoder_spec
from kvarn.models.errors import UnsupportedModelError
from kvarn.models.families import FAMILIES, decoder_spec
from kvarn.models.packed_cache import PackedCache, origin_of
from kvarn.models.parallel import Parallel
from kvarn.models.quantise import Quantization
from kvarn.models.weights import WeightLoader

_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
_log = logging.getLogger(__name__)


def load_model(
    path: Path,
    *,
    dtype: str = "auto",
    progress: Progress | None = None,
    max_context_length: int | None = None,
    parallel: Parallel | None = None,
    quantization: Quantization | None = None,
    kv_cache_dtype: KvDtype | Literal["auto"] = "auto",
    kernels: str = "auto",
    packed_cache: Path | None = None,
) -> Decoder | Encoder:
    """Load the checkpoint in directory `path`.

    Args:
        path: Where config.json and the safetensors are.
        dtype: Of plain weights: `float32`, `bfloat16`, or `auto` for what the kernels are fastest with.
        progress: Called with (stage, fraction).
        max_context_length: Lowers the checkpoint's own.
        parallel: This rank's place where several hold the model together.
        quantization: What plain weights are quantised to.
        kv_cache_dtype: Of cached keys and values; `auto`: of the weights, bfloat16 where they are quantised.
        kernels: The backend's name; `auto`: see `choose_kernels`.
        packed_cache: Directory where packed weights are kept from one start to the next.

    Raises:
        ModelError: It says what is wrong with the checkpoint.
        KernelError: The backend is not there.
    """
    checkpoint = Checkpoint(path, progress, "load weights" if quantization is None else f"quantise to {quantization}")
    architecture = str((checkpoint.config.get("architectures") or ["missing"])[0])
    if architecture not in FAMILIES and architecture not in ENCODERS:
        known = ", ".join([*FAMILIES, *ENCODERS])
        raise UnsupportedModelError(
            f"architecture {architecture!r} in {path / 'config.json'} is not supported; known ones: {known}"
        )
    backend = choose_kernels(kernels)
    torch_dtype = backend.preferred_dtype() if dtype == "auto" else _DTYPES[dtype]
    place = parallel or Parallel()
    packed = None
    if packed_cache is not None:
        packed = _open_cache(packed_cache, path.resolve().name, checkpoint, backend, (torch_dtype, quantization, place))
    loader = WeightLoader(checkpoint, backend, torch_dtype, place, quantization, packed)
    size = loader.num_parameters
    model: Decoder | Encoder
    if architecture in ENCODERS:
        encoder = encoder_spec(
            architecture, path, checkpoint.config, max_context_length=max_context_length, num_parameters=size
        )
        model = Encoder(encoder, loader)
    else:
        decoder = decoder_spec(
            architecture, checkpoint.config, max_context_length=max_context_length, num_parameters=size
        )
        model = Decoder(decoder, loader, _kv_dtype(kv_cache_dtype, loader))
    loader.finish()
    give_back_freed()
    return model


def _open_cache(
    directory: Path,
    model: str,
    checkpoint: Checkpoint,
    kernels: Kernels,
    how: tuple[torch.dtype, Quantization | None, Parallel],
) -> PackedCache | None:
    if not isinstance(kernels, KeepsPackedWeights):
        _log.warning("only the compiled kernels keep packed weights: packed_cache is not used")
        return None
    dtype, quantization, place = how
    origin = (__version__, *origin_of(checkpoint.files), dtype, quantization, place.rank, place.world_size)
    return PackedCache.open(directory, model, origin, kernels)


def _kv_dtype(asked: KvDtype | Literal["auto"], loader: WeightLoader) -> KvDtype:
    if asked != "auto":
        return asked
    return "float32" if loader.dtype == torch.float32 and not loader.quantization else "bfloat16"


def choose_kernels(name: str) -> Kernels:
    """The kernels of a backend; `auto`: the compiled ones, or torch's, with a warning, where they are not installed."""
    if name != "auto":
        return kernels_for(name)
    try:
        return kernels_for("cpu")
    except MissingKernelsError as error:
        _log.warning(f"serving with the torch kernels, which are slower: {error}")
        return kernels_for("torch")
