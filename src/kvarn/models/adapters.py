"""LoRA checkpoints (PEFT): read, checked against the model, brought into the lines that the kernels read.

Hu et al. 2021; `peft.LoraConfig` describes the fields, of which those that change what is computed are refused where it
is not computed here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from safetensors import SafetensorError
from safetensors.torch import load

from kvarn.kernels.adapters import AdapterPart, PackedAdapter, pack_adapter
from kvarn.kernels.linear import Linear
from kvarn.models.decoder import Decoder
from kvarn.specs.errors import ModelError
from kvarn.specs.products import LinearSpec
from kvarn.text.errors import CheckpointError
from kvarn.text.json_file import read_json, validate

_CONFIG = "adapter_config.json"
_WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_NAME = re.compile(r"(?P<module>.+)\.lora_(?P<which>[AB])(\.default)?\.weight")
_UNSUPPORTED: Mapping[str, str] = MappingProxyType(
    {
        "use_dora": "DoRA",
        "use_qalora": "QA-LoRA",
        "use_bdlora": "BD-LoRA",
        "lora_bias": "a bias of the adapter (lora_bias)",
        "fan_in_fan_out": "weights stored as [in, out] (fan_in_fan_out)",
        "modules_to_save": "whole modules beside the adapter (modules_to_save)",
        "trainable_token_indices": "trained tokens (trainable_token_indices)",
        "target_parameters": "adapters of parameters, such as experts' (target_parameters)",
        "layer_replication": "repeated layers (layer_replication)",
        "alora_invocation_tokens": "activated LoRA (alora_invocation_tokens)",
        "megatron_config": "Megatron's layers (megatron_config)",
        "arrow_config": "Arrow routing (arrow_config)",
        "kasa_config": "KaSA (kasa_config)",
        "velora_config": "VeLoRA (velora_config)",
        "monteclora_config": "MonteCLoRA (monteclora_config)",
    }
)
"""Fields that must be unset, and what they ask for."""
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Initialisations that change the base model: an adapter that was saved without converting it fits no other."""
_SPECIAL: Mapping[str, str] = MappingProxyType(
    {
        "lora_embedding_": "adapters of embeddings",
        "lora_magnitude_vector": "DoRA",
        "lora_B.bias": "a bias of the adapter",
        "base_layer": "changed weights of the base model",
    }
)
"""Parts of tensors' names that tell what is not supported."""


class AdapterError(ModelError):
    """An adapter cannot be used with this model; the message says why."""


_Alpha = Annotated[float, Field(ge=-1e6, le=1e6)]


class _LoraConfig(BaseModel):
    """The part of adapter_config.json that decides what is computed."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    peft_type: str = "LORA"
    r: int = Field(8, ge=1)
    lora_alpha: _Alpha = 8.0
    use_rslora: bool = False
    bias: str = "none"
    init_lora_weights: bool | str | None = True
    rank_pattern: dict[str, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    alpha_pattern: dict[str, _Alpha] = Field(default_factory=dict)
    base_model_name_or_path: str = ""

    @property
    def effective(self) -> bytes:
        """The fields that decide on answers, behind their length."""
        text = self.model_dump_json(include={"r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern"}).encode()
        return len(text).to_bytes(8, "little") + text

    def scale_and_rank(self, module: str) -> tuple[float, int]:
        """Factor of B A in a module, and its rank: as `peft.tuners.lora` finds them."""
        rank = self.rank_pattern.get(_pattern(self.rank_pattern, module), self.r)
        alpha = self.alpha_pattern.get(_pattern(self.alpha_pattern, module), self.lora_alpha)
        return alpha / (rank**0.5 if self.use_rslora else rank), rank


@dataclass(frozen=True, slots=True)
class LoadedAdapter:
    digest: str
    """Digest of what it computes, 32 hexadecimal digits: part of the name of every block computed with it."""
    rank: int
    """The largest of its modules."""
    packed: PackedAdapter


def load_adapter(path: Path, model: Decoder, *, max_rank: int | None = None) -> LoadedAdapter:
    """Read the adapter in directory `path`. The model is only looked at: may run in a thread beside its steps.

    Raises:
        AdapterError: It is damaged, does not fit the model, or asks for what is not supported.
    """
    try:
        config = _checked_config(read_json(path / _CONFIG, required=True), path)
        weights = _read(path / _WEIGHTS)
        tensors = load(weights)
    except SafetensorError as error:
        raise AdapterError(f"{path / _WEIGHTS} is not a readable safetensors file: {error}") from error
    except CheckpointError as error:
        raise AdapterError(str(error)) from error
    modules = _modules(tensors, path)
    layers = [_parts(spec, layer, modules, config) for spec, layer in model.adapted_layers]
    known = {name for spec, _ in model.adapted_layers for name in spec.names}
    if unknown := [module for module in modules if module not in known]:
        kind = "head" if "lm_head" in unknown[0] else "embeddings" if "embed" in unknown[0] else None
        what = f"the {kind} ({unknown[0][:120]})" if kind else repr(unknown[0][:120])
        others = f"; {len(unknown)} modules of this one are something else" if len(unknown) > 1 else ""
        raise AdapterError(
            f"{path}: an adapter of {what} is not supported. Adapters change the linear layers of attention and of "
            f"dense MLPs{others}."
        )
    rank = max((part.a.shape[0] for parts in layers for part in parts), default=0)
    if max_rank is not None and rank > max_rank:
        raise AdapterError(f"{path}: the adapter's rank is {rank}, more than max_lora_rank {max_rank}: raise that")
    digest = hashlib.sha256(config.effective + weights).hexdigest()[:32]
    return LoadedAdapter(digest, rank, pack_adapter(layers, model.dtype))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise AdapterError(
            f"cannot read {path}: {reason}. A PEFT adapter is a folder with {_CONFIG} and {_WEIGHTS}"
        ) from error


def _checked_config(data: dict[str, Any], path: Path) -> _LoraConfig:
    file = path / _CONFIG
    config = validate(_LoraConfig, data, file)
    problems = [text for name, text in _UNSUPPORTED.items() if data.get(name)]
    if config.peft_type != "LORA":
        problems.insert(0, f"PEFT's method {config.peft_type[:40]!r}")
    if config.bias != "none":
        problems.append(f"a trained bias (bias is {config.bias[:40]!r})")
    if isinstance(config.init_lora_weights, str) and config.init_lora_weights.startswith(_CHANGES_BASE):
        problems.append(
            f"init_lora_weights {config.init_lora_weights[:40]!r}, which changes the base model: convert the adapter "
            "when it is saved (path_initial_model_for_weight_conversion)"
        )
    if problems:
        raise AdapterError(f"{file}: not supported: {'; '.join(problems)}")
    return config


def _pattern(patterns: Iterable[str], module: str) -> str:
    """The key that holds for a module, as `peft.utils.other.get_pattern_key` finds it."""
    try:
        return next((key for key in patterns if re.match(rf"(.*\.)?({key})$", module)), module)
    except re.error as error:
        raise AdapterError(f"a key of rank_pattern or alpha_pattern is no pattern: {error}") from error


def _modules(tensors: Mapping[str, torch.Tensor], path: Path) -> dict[str, dict[str, torch.Tensor]]:
    """A and B of each module, by its name in the base model."""
    modules: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        for part, what in _SPECIAL.items():
            if part in name:
                raise AdapterError(f"{path}: not supported: {what} (tensor {name[:120]!r})")
        match = _NAME.fullmatch(name.removeprefix(_PREFIX))
        if match is None:
            raise AdapterError(f"{path}: tensor {name[:120]!r} is not one of a LoRA adapter: whole weights are refused")
        if tensor.ndim != 2 or not tensor.is_floating_point():
            raise AdapterError(f"{path}: {name[:120]!r} is {tensor.dtype} {list(tensor.shape)}, not a matrix of floats")
        modules.setdefault(match["module"], {})[match["which"]] = tensor
    for module, pair in modules.items():
        if len(pair) != 2:
            raise AdapterError(
                f"{path}: {module[:120]} has lora_{next(iter(pair))} alone: the checkpoint is incomplete"
            )
    if not modules:
        raise AdapterError(f"{path / _WEIGHTS} holds no adapter")
    return modules


def _parts(
    spec: LinearSpec, layer: Linear, modules: dict[str, dict[str, torch.Tensor]], config: _LoraConfig
) -> list[AdapterPart]:
    """The adapter's change of this rank's part of a layer."""
    parts: list[AdapterPart] = []
    first_out = 0
    for stack in spec.stacks():
        name, outs = stack.name, sum(map(len, stack.held))
        if (pair := modules.get(name)) is not None:
            scale, rank = config.scale_and_rank(name)
            a, b = pair["A"], pair["B"]
            for which, found, wanted in (("A", a, [rank, spec.inputs.size]), ("B", b, [stack.rows, rank])):
                if list(found.shape) != wanted:
                    raise AdapterError(
                        f"lora_{which} of {name} has shape {list(found.shape)}, this model and {_CONFIG} ask for "
                        f"{wanted}: is the adapter of another base model?"
                    )
            if not all(bool(each.isfinite().all()) for each in (a, b)):
                raise AdapterError(f"the adapter of {name} holds numbers that are not finite: it is damaged")
            a = a[:, spec.inputs.held.start : spec.inputs.held.stop]
            if layer.input_order is not None:
                a = a[:, layer.input_order]
            b = b if stack.order is None else b[stack.order]
            b = torch.cat([b[rows.start : rows.stop] for rows in stack.held])
            parts.append(AdapterPart(first_out, a, b, scale))
        first_out += outs
    return parts
