"""Memory of a device in a training job: SFT, DPO, PPO and GRPO; whole models, LoRA and QLoRA; ZeRO or FSDP.

Weights, gradients and optimiser states as Rajbhandari et al. 2020 count them (ZeRO, arXiv 1910.02054): for a trained
number 2 bytes of weight, 2 of gradient, 12 of AdamW (a float32 copy and two moments). A stage divides among devices: 1
the optimiser's, 2 gradients too, 3 weights too (FSDP). QLoRA's weights: Dettmers et al. 2023 (arXiv 2305.14314).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from kvarn.planner.activations import activation_bytes
from kvarn.planner.errors import PlanError
from kvarn.planner.memory import kv_bytes_per_token
from kvarn.planner.models import PlannedModel
from kvarn.planner.quantity import Part, Quantity
from kvarn.specs.place import Place
from kvarn.specs.products import LinearSpec
from kvarn.specs.rank_weights import rank_weights
from kvarn.specs.spec import DecoderSpec

Objective = Literal["sft", "dpo", "ppo", "grpo"]
Tuned = Literal["full", "lora", "qlora"]

_NF4_BYTES = (4 + 0.127) / 8
"""QLoRA: four bits, and scales of blocks of 64 that are quantized themselves."""
_LOGIT_BYTES = 8
"""A logit in float32 and its gradient."""
_RUNTIME_BYTES = 2 * 1024**3
_STATES = (("weights", 2, 3), ("gradients", 2, 2), ("optimizer", 8, 1), ("master_weights", 4, 1))
"""Bytes of a trained number, and the stage of ZeRO from which on devices share them."""
_LORA_RANK = 16
_ROLLOUTS = 8
"""Answers that a device writes at once."""
_ACTIVATION_ERROR = 0.2
_MOST_DEVICES = 4096
_USABLE_SHARE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSetting:
    """A job, as each device sees it."""

    objective: Objective = "sft"
    tuned: Tuned = "full"
    """`lora`: adapters of all linear layers but experts; `qlora`: over weights in 4 bits."""
    devices: int = 1
    zero: Literal[0, 1, 2, 3] = 3
    """Stage of ZeRO; 3 is FSDP."""
    sequences: int = 1
    """Sequences of a device in one forward and backward pass; of DPO pairs."""
    length: int = 4096
    """Tokens of a sequence, prompt and answer together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingMemory:
    """Bytes of one device, the fullest."""

    setting: TrainingSetting
    parts: tuple[Part, ...]
    """Held throughout."""
    update: tuple[Part, ...]
    """Held while weights are updated."""
    rollout: tuple[Part, ...]
    """Held while answers are written, which is not at the same time."""

    @property
    def peak(self) -> Quantity:
        held, update, rollout = (_sum(parts) for parts in (self.parts, self.update, self.rollout))
        errors = [part.quantity.value * (part.quantity.error or 0.0) for part in (*self.parts, *self.update)]
        value = held + max(update, rollout)
        return Quantity(
            value=value,
            unit="B",
            formula=f"{held:,.0f} held throughout + the larger of {update:,.0f} (update) and {rollout:,.0f} (rollouts)",
            assumption="the allocator wastes nothing; rollouts' memory is given back before the update",
            error=sum(errors) / value,
        )


def training_memory(model: PlannedModel, setting: TrainingSetting) -> TrainingMemory:
    """The memory that a device of a job needs. Raises PlanError for sizes that are no sizes."""
    for name in ("devices", "sequences", "length"):
        if getattr(setting, name) < 1:
            raise PlanError(f"{name} must be at least 1, not {getattr(setting, name)}")
    of_rollouts = setting.objective in ("ppo", "grpo")
    return TrainingMemory(
        setting=setting,
        parts=tuple(_held(model, setting)),
        update=tuple(_update(model, setting)),
        rollout=tuple(_rollout(model, setting)) if of_rollouts else (),
    )


def fewest_devices(model: PlannedModel, setting: TrainingSetting, device_bytes: float) -> int:
    """The smallest power of two of devices on which a job fits. Raises PlanError where no number does."""
    devices = 1
    while devices <= _MOST_DEVICES:
        planned = training_memory(model, replace(setting, devices=devices))
        if planned.peak.value <= device_bytes * _USABLE_SHARE:
            return devices
        devices *= 2
    what = "lora or qlora, or shorter sequences" if setting.zero == 3 else "ZeRO 3"
    raise PlanError(
        f"{model.name}: a device of {device_bytes / 1e9:.0f} GB has no room for {setting.objective} ({setting.tuned}), "
        f"which needs {planned.peak.value / 1e9:.1f} GB of each of {devices // 2} devices: take {what}"
    )


def state_bytes(trained: float, setting: TrainingSetting) -> Iterator[tuple[str, float, str]]:
    """Weights, gradients and optimiser states of so many trained numbers on a device: name, bytes, formula."""
    for name, size, stage in _STATES:
        parts = setting.devices if setting.zero >= stage else 1
        yield name, trained * size / parts, f"{trained:,.0f} numbers x {size} B / {parts} devices"


def lora_parameters(spec: DecoderSpec, rank: int) -> int:
    """Numbers of adapters of all linear layers but the head, routers and experts: a of [rank, in], b of [out, rank]."""
    count = 0
    for each in rank_weights(spec, Place()):
        product = each.held
        if isinstance(product, LinearSpec) and product.role == "layer":
            out = sum(shard.size for shard in product.outputs)
            count += each.times * rank * (len(product.names) * product.inputs.size + out)
    return count


def _held(model: PlannedModel, setting: TrainingSetting) -> Iterator[Part]:
    yield from _trained("policy", model, setting)
    if setting.objective == "ppo":
        yield from _trained("critic", model, setting)
    # An adapter that is left out leaves the reference: it needs no weights of its own.
    if setting.objective != "sft" and setting.tuned == "full":
        yield _frozen("reference", model.num_parameters, setting)
    if setting.objective == "ppo":
        yield _frozen("reward", model.num_parameters, setting)
    assumption = "driver, collectives' buffers, kernels' scratch memory"
    yield Part("runtime", Quantity(value=_RUNTIME_BYTES, unit="B", assumption=assumption, error=0.5))


def _trained(name: str, model: PlannedModel, setting: TrainingSetting) -> Iterator[Part]:
    """A model with its gradients and states."""
    trained = model.num_parameters
    if setting.tuned != "full":
        trained = lora_parameters(model.spec, _LORA_RANK)
        yield _frozen(f"{name}_base", model.num_parameters, setting, linear_share=_linear_share(model.spec))
    for part, value, formula in state_bytes(trained, setting):
        yield Part(f"{name}_{part}", Quantity(value=value, unit="B", formula=formula, error=0.0))


def _frozen(name: str, parameters: float, setting: TrainingSetting, *, linear_share: float = 0.0) -> Part:
    """Weights that are not trained, in bfloat16; with QLoRA those of linear layers in 4 bits."""
    four_bits = parameters * linear_share if setting.tuned == "qlora" else 0.0
    parts = setting.devices if setting.zero == 3 else 1
    value = (2 * (parameters - four_bits) + _NF4_BYTES * four_bits) / parts
    nf4 = f" + {four_bits:,.0f} x {_NF4_BYTES:.3f} B" if four_bits else ""
    formula = f"({parameters - four_bits:,.0f} numbers x 2 B{nf4}) / {parts} devices"
    return Part(name, Quantity(value=value, unit="B", formula=formula, error=0.0))


def _linear_share(spec: DecoderSpec) -> float:
    """Part of a model's numbers that are weights of linear layers, without head and routers."""
    linear = total = 0
    for each in rank_weights(spec, Place()):
        count = each.times * each.parameters
        total += count
        if isinstance(each.held, LinearSpec) and each.held.role in ("layer", "expert"):
            linear += count
    return linear / total


def _update(model: PlannedModel, setting: TrainingSetting) -> Iterator[Part]:
    spec, sequences = model.spec, setting.sequences * (2 if setting.objective == "dpo" else 1)
    kept = sequences * activation_bytes(spec, setting.length)
    pairs = "2 x " if setting.objective == "dpo" else ""
    formula = f"{pairs}{setting.sequences} sequences x {setting.length} tokens, full recomputation"
    source = "Korthikanti et al. 2022, arXiv 2205.05198"
    kept_quantity = Quantity(value=kept, unit="B", formula=formula, error=_ACTIVATION_ERROR, source=source)
    yield Part("activations", kept_quantity)
    logits = sequences * setting.length * spec.vocab_size * _LOGIT_BYTES
    formula = f"{sequences * setting.length:,} tokens x {spec.vocab_size:,} x {_LOGIT_BYTES} B"
    assumption = "of all tokens at once; a loss in chunks needs less"
    yield Part("logits", Quantity(value=logits, unit="B", formula=formula, assumption=assumption, error=0.0))
    if setting.zero == 3 and setting.devices > 1:
        layer = _largest_layer(spec)
        value = 2 * layer * (_NF4_BYTES if setting.tuned == "qlora" else 2)
        assumption = "a layer is gathered while the one before is computed"
        formula = f"2 layers x {layer:,} numbers"
        yield Part("gathered", Quantity(value=value, unit="B", formula=formula, assumption=assumption, error=0.1))


def _largest_layer(spec: DecoderSpec) -> int:
    sizes = {
        layer: sum(
            each.times * each.parameters
            for each in rank_weights(replace(spec, layers=[layer]), Place())
            if each.part not in ("embedding", "head")
        )
        for layer in dict.fromkeys(spec.layers)
    }
    return max(sizes.values())


def _rollout(model: PlannedModel, setting: TrainingSetting) -> Iterator[Part]:
    each = kv_bytes_per_token(model)
    value = _ROLLOUTS * (setting.length * each.value + model.spec.state_bytes)
    formula = f"{_ROLLOUTS} answers x {setting.length} tokens x ({each.formula})"
    yield Part("rollout_kv_cache", Quantity(value=value, unit="B", formula=formula, error=0.0))
    parts = setting.devices if setting.zero == 3 else 1
    value, formula = 2 * model.num_parameters / parts, f"{model.num_parameters:,} numbers x 2 B / {parts} devices"
    yield Part("rollout_weights", Quantity(value=value, unit="B", formula=formula, error=0.0))


def _sum(parts: tuple[Part, ...]) -> float:
    return sum(part.quantity.value for part in parts)
