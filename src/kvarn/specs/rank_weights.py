"""All weights of a decoder that a rank holds, as `kvarn.models` loads them, by part of the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from kvarn.shapes.attention import DeltaDimensions, GroupedDimensions, LatentDimensions
from kvarn.specs.attention import DeltaProducts, GroupedProducts, LatentProducts
from kvarn.specs.expert_placement import ExpertPlacement
from kvarn.specs.families.family import LayerNames
from kvarn.specs.families.table import FAMILIES
from kvarn.specs.mlp import MlpProducts, MoeProducts, expert_products
from kvarn.specs.place import Place, Shard
from kvarn.specs.products import LinearSpec
from kvarn.specs.spec import DecoderSpec

WeightPart = Literal["embedding", "attention", "mlp", "experts", "router", "norms", "head"]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows that are looked up, in the type of plain weights."""

    rows: int
    size: int


@dataclass(frozen=True, slots=True)
class HeadWeights:
    """A plain matrix [out, inputs] for each of a rank's heads (`kvarn.kernels.linear.HeadProducts`)."""

    heads: int
    out: int
    inputs: int


@dataclass(frozen=True, slots=True)
class Numbers:
    """Numbers that are multiplied by no matrix."""

    count: int
    of_activations: bool = False
    """They are held in the type of activations; else in float32."""
    stored: int | None = None
    """Numbers of the checkpoint that they are made of; None: as many."""


Held = LinearSpec | Table | HeadWeights | Numbers


@dataclass(frozen=True, slots=True)
class HeldWeight:
    """Something that a rank holds, so many times."""

    part: WeightPart
    held: Held
    times: int = 1

    @property
    def parameters(self) -> int:
        """Numbers of the whole weight in the checkpoint, once, were it not divided among ranks."""
        match self.held:
            case LinearSpec() as product:
                return sum(each.size for each in product.outputs) * (product.inputs.size + product.bias)
            case Table(rows, size):
                return rows * size
            case HeadWeights(heads, out, inputs):
                return heads * out * inputs
            case Numbers(count, _, stored):
                return count if stored is None else stored


def rank_weights(spec: DecoderSpec, place: Place, *, by_layer: bool = False) -> Iterator[HeldWeight]:
    """The weights of one rank. Layers that are alike are counted; `by_layer`: each by itself, with its own names.

    Raises ParallelError or StageError where the model cannot be divided so.
    """
    names, stage = FAMILIES[spec.architecture].names, place.stage
    alike: dict[object, list[int]] = {}
    for index in stage.layers(spec.num_layers):
        layer, apart = spec.layers[index], by_layer or index in place.expert_load
        alike.setdefault(index if apart else (layer.attention, layer.is_moe), []).append(index)
    for members in alike.values():
        for each in _layer(members[0], spec, names, place):
            yield HeldWeight(each.part, each.held, each.times * len(members))
    vocabulary = place.vocab_share(spec.vocab_size)
    head = LinearSpec(
        names=("model.embed_tokens" if spec.tied_embeddings else "lm_head",),
        outputs=(vocabulary,),
        inputs=Shard.whole(spec.hidden_size),
        role="head",
    )
    if stage.is_last or (stage.is_first and spec.tied_embeddings):
        yield HeldWeight("head", head)
    if stage.is_first and not spec.tied_embeddings:
        yield HeldWeight("embedding", Table(len(vocabulary.held), spec.hidden_size))
    yield HeldWeight("norms", Numbers(spec.hidden_size, spec.layer_norm))


def _layer(index: int, spec: DecoderSpec, names: LayerNames, place: Place) -> Iterator[HeldWeight]:
    prefix, hidden = f"model.layers.{index}.", spec.hidden_size
    for name in (names.attention_input_norm, names.mlp_input_norm):
        if name is not None:
            yield HeldWeight("norms", Numbers(hidden, spec.layer_norm))
    for name in (names.attention_output_norm, names.mlp_output_norm):
        if name is not None:
            yield HeldWeight("norms", Numbers(hidden))
    match spec.layers[index].attention:
        case GroupedDimensions() as dims:
            held = _grouped(prefix, dims, spec, names, place)
        case LatentDimensions() as dims:
            held = _latent(prefix, dims, spec, place)
        case DeltaDimensions() as dims:
            held = _delta(prefix, dims, spec, names, place)
        case other:
            raise AssertionError(f"{other} is of no known kind")
    yield from (each if isinstance(each, HeldWeight) else HeldWeight("attention", each) for each in held)
    if spec.layers[index].is_moe:
        yield from _moe(index, prefix, spec, names, place)
    else:
        mlp = MlpProducts.of(prefix + names.mlp, spec.intermediate_size, spec, names, place)
        yield from (HeldWeight("mlp", each) for each in (mlp.gate_up, mlp.down))


def _grouped(
    prefix: str, dims: GroupedDimensions, spec: DecoderSpec, names: LayerNames, place: Place
) -> Iterator[Held | HeldWeight]:
    own = GroupedProducts.of(prefix, dims, spec, names, place)
    yield from (own.qkv, own.output)
    if spec.qk_norm != "none":
        whole, held = (own.query.size, own.kv.size), (len(own.query.held), len(own.kv.held))
        count = sum(whole if spec.qk_norm == "full" else held) * dims.head_dim
        yield HeldWeight("norms", Numbers(count, stored=2 * dims.head_dim if spec.qk_norm == "head" else None))
    if spec.sinks:
        yield Numbers(len(own.query.held))


def _latent(prefix: str, dims: LatentDimensions, spec: DecoderSpec, place: Place) -> Iterator[Held | HeldWeight]:
    own = LatentProducts.of(f"{prefix}self_attn.", dims, spec, place)
    heads = len(own.heads.held)
    yield from (own.down, own.query, own.output)
    yield HeadWeights(heads, dims.rank, dims.plain_dim)
    yield HeadWeights(heads, dims.value_dim, dims.rank)
    yield HeldWeight("norms", Numbers(dims.query_rank + dims.rank))


def _delta(
    prefix: str, dims: DeltaDimensions, spec: DecoderSpec, names: LayerNames, place: Place
) -> Iterator[Held | HeldWeight]:
    own = DeltaProducts.of(prefix + names.delta, dims, spec, place)
    keys, values = len(own.key.held) * dims.key_dim, len(own.value.held) * dims.value_dim
    yield from (own.inputs, own.rates, own.output)
    yield Numbers((2 * keys + values) * dims.window + 2 * len(own.value.held))
    yield HeldWeight("norms", Numbers(dims.value_dim))


def _moe(index: int, prefix: str, spec: DecoderSpec, names: LayerNames, place: Place) -> Iterator[HeldWeight]:
    own = MoeProducts.of(prefix, spec, names, place)
    yield HeldWeight("router", own.router)
    if spec.router.choice_bias:
        yield HeldWeight("router", Numbers(spec.num_experts))
    if own.shared is not None:
        yield from (HeldWeight("mlp", each) for each in (own.shared.gate_up, own.shared.down))
    if own.shared_gate is not None:
        yield HeldWeight("router", own.shared_gate)
    one = expert_products(prefix, 0, spec, names, place)
    count = _experts_held(index, spec.num_experts, place)
    yield from (HeldWeight("experts", each, count) for each in (one.gate_up, one.down))


def _experts_held(index: int, num_experts: int, place: Place) -> int:
    """Experts of a layer that the rank holds, whole or a part of each."""
    if place.expert_parallel and index in place.expert_load:
        return len(place.expert_placement(index, num_experts).held(place.rank))
    return _evenly_held(num_experts, place.rank, place.world_size) if place.expert_parallel else num_experts


@lru_cache(maxsize=256)
def _evenly_held(num_experts: int, rank: int, world_size: int) -> int:
    return len(ExpertPlacement.even(num_experts, world_size).held(rank))
