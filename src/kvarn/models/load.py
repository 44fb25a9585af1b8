"""From a directory to a model."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from kvarn import __version__
from kvarn.kernels.backend import Kernels
from kvarn.kernels.device.memory import GIB, give_back_freed
from kvarn.kernels.dispatch import kernels_for
from kvarn.kernels.packer import WeightPacker
from kvarn.kernels.weights import Quantization
from kvarn.models.decoder import Decoder
from kvarn.models.encoders.causal import CausalEncoder, is_reranker, load_score_head
from kvarn.models.encoders.config import (
    ENCODERS,
    SentenceModules,
    embeds_chats,
    encoder_spec,
    has_sentence_modules,
    is_lowercase,
    sentence_modules,
)
from kvarn.models.encoders.encoder import Encoder
from kvarn.models.loading.checkpoint import Checkpoint, Progress
from kvarn.models.loading.packed_cache import PackedCache, origin_of
from kvarn.models.loading.packed_directory import default_directory
from kvarn.models.loading.weights import WeightLoader
from kvarn.models.parallel.tensor import Parallel
from kvarn.shapes import KvDtype
from kvarn.shapes.packing import Dtype
from kvarn.specs.errors import NotEnoughMemoryError, UnsupportedModelError
from kvarn.specs.families.decoder_spec import decoder_spec
from kvarn.specs.families.hf_config import CheckpointKind, EncoderConfig
from kvarn.specs.held import HELD_DTYPES, cache_type
from kvarn.specs.read import architecture_of, validated_decoder
from kvarn.specs.spec import DecoderSpec
from kvarn.text.architectures import CLASSIFIER

_FLOAT16 = ("float16", "half")
_log = logging.getLogger(__name__)

Model = Decoder | Encoder | CausalEncoder


def load_model(
    path: Path,
    *,
    device: str | None = None,
    dtype: str = "auto",
    progress: Progress | None = None,
    max_context_length: int | None = None,
    parallel: Parallel | None = None,
    quantization: Quantization | None = None,
    kv_cache_dtype: KvDtype | Literal["auto"] = "auto",
    kernels: str = "auto",
    packed_cache: Path | Literal["auto"] | None = None,
    kind: Literal["auto", "generate", "embed", "score"] = "auto",
    gpu_memory_utilization: float = 1.0,
) -> Model:
    """Load the checkpoint in directory `path`.

    Args:
        path: Where config.json and the safetensors are.
        device: Torch's name of it, or `auto` (see `kernels_for`); default: this machine's processors. Weights and KV
            cache are made there.
        dtype: Type of plain weights: `float32`, `bfloat16`, `float16` or `half` (held as float32), or `auto` for the
            type that the kernels are fastest with.
        progress: Called with (stage, fraction).
        max_context_length: Lowers the checkpoint's own.
        parallel: This rank's place where several hold the model together.
        quantization: Form of plain weights, quantized at load.
        kv_cache_dtype: Type of cached keys and values; `auto`: the weights', bfloat16 where they are quantized.
        kernels: The backend's name; `auto`: see `kernels_for`.
        packed_cache: Directory where packed weights are kept from one start to the next, written in a thread that may
            outlast this call. `auto`: for those quantized here, in the user's cache, while the disk has room.
        kind: Use of a decoder; `auto`: to embed or to rank where sentence-transformers' modules.json beside it says so.
        gpu_memory_utilization: Share of a GPU's memory that the model and its KV cache may take.

    Raises:
        ModelError: It says what is wrong with the checkpoint.
        KernelError: The backend is not there, or does not multiply weights of this type.
    """
    checkpoint = Checkpoint(path, progress, "load weights" if quantization is None else f"quantize to {quantization}")
    architecture = architecture_of(checkpoint.config, path / "config.json")
    if is_lowercase(path):
        _log.warning(
            "sentence_bert_config.json: do_lower_case is not done here: send texts in lower case, unless "
            "tokenizer.json does it"
        )
    backend = kernels_for(kernels, device)
    torch_dtype = backend.packer.preferred_dtype() if dtype == "auto" else getattr(torch, HELD_DTYPES[dtype])
    backend.packer.check_dtype(torch_dtype)
    _warn_of_float16(dtype, torch_dtype, checkpoint)
    place = parallel or Parallel()
    if packed_cache == "auto" and (quantization is None or backend.packer.layout is None):
        packed_cache = None
    form = (torch_dtype, quantization, place.key)
    cache = None if packed_cache is None else _open_cache(packed_cache, checkpoint, backend.packer, form)
    loader = WeightLoader(checkpoint, backend, torch_dtype, place, quantization, cache)
    if architecture in ENCODERS:
        config = checkpoint.validated(EncoderConfig)
        encoder = encoder_spec(architecture, path, config, max_context_length=max_context_length)
        check_memory(backend, gpu_memory_utilization, loader.min_bytes)
        model: Model = Encoder(replace(encoder, num_parameters=loader.num_parameters), loader)
    else:
        decoder_config = validated_decoder(architecture, checkpoint.config, path / "config.json")
        decoder = decoder_spec(architecture, decoder_config, max_context_length=max_context_length)
        decoder = replace(decoder, num_parameters=loader.num_parameters)
        is_classifier = any(name.endswith(CLASSIFIER) for name in decoder_config.architectures)
        reranks = is_reranker(decoder, path, kind, is_classifier=is_classifier)
        if reranks or (kind != "generate" and has_sentence_modules(path)):
            check_memory(backend, gpu_memory_utilization, loader.min_bytes)
            model = _load_causal_encoder(decoder, path, loader, reranks=reranks)
        else:
            plain: Dtype = "float32" if torch_dtype == torch.float32 else "bfloat16"
            kv_dtype = cache_type(decoder, plain, loader.quantization, kv_cache_dtype)
            kv_bytes = decoder.max_context_length * decoder.kv_bytes_per_token(kv_dtype) + decoder.state_bytes
            if max_context_length is None and backend.device.memory() is None:
                kv_bytes = 0  # a shorter context may be planned
            check_memory(backend, gpu_memory_utilization, loader.min_bytes, kv_bytes)
            model = Decoder(decoder, loader, kv_dtype)
    loader.finish()
    give_back_freed(backend.device.torch_device)
    return model


def _open_cache(
    where: Path | Literal["auto"], checkpoint: Checkpoint, packer: WeightPacker, form: tuple[object, ...]
) -> PackedCache | None:
    if packer.layout is None:
        _log.warning("only the compiled kernels keep packed weights: packed_cache is not used")
        return None
    directory = default_directory() if where == "auto" else where
    if directory is None:
        _log.info("packed weights are not kept: the user has no home (packed_cache may name a directory)")
        return None
    origin = (__version__, *origin_of(checkpoint.files), *form)
    name = checkpoint.path.resolve().name
    return PackedCache.open(directory, name, origin, packer, is_named=where != "auto")


def _load_causal_encoder(spec: DecoderSpec, path: Path, loader: WeightLoader, *, reranks: bool) -> CausalEncoder:
    if spec.has_states:
        raise UnsupportedModelError(
            f"{spec.architecture} has layers with recurrent states, which are not supported with embeddings: "
            "set kind to generate"
        )
    if reranks:
        head = load_score_head(spec, path, loader)
        return CausalEncoder(spec, SentenceModules("last", normalize=False), loader, head)
    if embeds_chats(path):
        _log.warning(
            "sentence_bert_config.json: the model was tuned on texts in its chat template; Kvarn embeds texts as they "
            "are sent: send them rendered"
        )
    return CausalEncoder(spec, sentence_modules(path), loader)


def _warn_of_float16(requested: str, held: torch.dtype, checkpoint: Checkpoint) -> None:
    if requested in _FLOAT16:
        _log.warning(
            f"dtype {requested}: weights are held as float32, which keeps their values and takes twice the memory"
        )
    elif requested == "auto" and held == torch.bfloat16 and checkpoint.validated(CheckpointKind).dtype in _FLOAT16:
        _log.warning("the checkpoint's float16 weights are rounded to bfloat16; dtype float16 keeps their values")


def check_memory(kernels: Kernels, share: float, weight_bytes: float, kv_bytes: int = 0) -> None:
    """Raise NotEnoughMemoryError where weights and the KV cache of one context need more than the machine has, or more
    than this share of a GPU or than other processes leave of it."""
    device = kernels.device.memory()
    memory = kernels.device.memory_bytes() if device is None else device.usable(share)
    if weight_bytes + kv_bytes <= memory:
        return
    cache = f" and the KV cache of one context {kv_bytes / GIB:.1f} GiB" if kv_bytes else ""
    shorter = "lower max_context_length, " if kv_bytes else ""
    if device is None:
        has, advice = f"this machine has {memory / GIB:.1f} GiB of memory", ""
    else:
        has = (
            f"{share:g} of the GPU's {device.total / GIB:.1f} GiB (gpu_memory_utilization) and what other processes "
            f"leave of them, {device.free / GIB:.1f} GiB, allow {memory / GIB:.1f} GiB"
        )
        advice = "raise gpu_memory_utilization, "
    raise NotEnoughMemoryError(
        f"the weights take {weight_bytes / GIB:.1f} GiB{cache}, but {has}: {advice}{shorter}set "
        "quantization, or take a smaller model"
    )
