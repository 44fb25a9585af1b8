"""The products of a layer's attention, one function for each kind."""

from __future__ import annotations

from dataclasses import dataclass

from kvarn.shapes.attention import DeltaDimensions, GroupedDimensions, LatentDimensions
from kvarn.specs.families.family import LayerNames
from kvarn.specs.place import Place, Shard
from kvarn.specs.products import Grouped, Interleaved, LinearSpec, RowOrder
from kvarn.specs.spec import DecoderSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedProducts:
    query: Shard
    kv: Shard
    """Heads."""
    qkv: LinearSpec
    output: LinearSpec

    @staticmethod
    def of(prefix: str, dims: GroupedDimensions, spec: DecoderSpec, names: LayerNames, place: Place) -> GroupedProducts:
        """Those of the layer whose tensors' names begin with `prefix`, this rank's part of them."""
        query, kv = place.share(dims.num_heads, "query heads"), place.kv_head_share(dims.num_kv_heads)
        query_features, kv_features = query.times(dims.head_dim), kv.times(dims.head_dim)
        hidden = Shard.whole(spec.hidden_size)
        first_features = query.times(2 * dims.head_dim) if dims.gated else query_features
        return GroupedProducts(
            query=query,
            kv=kv,
            qkv=LinearSpec(
                names=tuple(prefix + name for name in names.qkv),
                outputs=(first_features, kv_features, kv_features),
                inputs=hidden,
                bias=spec.qkv_bias,
                interleaved=row_orders(dims, spec, place.world_size),
            ),
            output=LinearSpec(
                names=(prefix + names.output,), outputs=(hidden,), inputs=query_features, bias=spec.output_bias
            ),
        )


def row_orders(dims: GroupedDimensions, spec: DecoderSpec, ranks: int) -> tuple[RowOrder | None, ...]:
    """Orders of the rows of queries, keys and values. Gates stand beside each head's query."""
    if dims.gated:
        return (Grouped(groups=dims.num_heads, sizes=(dims.head_dim, dims.head_dim), ranks=ranks), None, None)
    if not spec.interleaved_rope:
        return ()
    rotated = max(len(layer.rope.inverse_frequencies) for layer in spec.layers)
    heads = Interleaved(run=dims.head_dim, first=0, count=2 * rotated)
    return (heads, heads, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentProducts:
    heads: Shard
    down: LinearSpec
    """To the row, before it the compressed query where queries are compressed."""
    query: LinearSpec
    output: LinearSpec

    @staticmethod
    def of(prefix: str, dims: LatentDimensions, spec: DecoderSpec, place: Place) -> LatentProducts:
        heads, hidden = place.share(dims.num_heads, "query heads"), Shard.whole(spec.hidden_size)
        head_dim, compressed, row = dims.head_dim, dims.query_rank, Shard.whole(dims.row_size)
        row_name = f"{prefix}kv_a_proj_with_mqa"

        def rope_of(size: int) -> Interleaved | None:
            """The order of a tensor's rows: `rope_dim` rotated ones end each `size` rows."""
            paired = spec.interleaved_rope
            return Interleaved(run=size, first=size - dims.rope_dim, count=dims.rope_dim) if paired else None

        return LatentProducts(
            heads=heads,
            down=LinearSpec(
                names=(f"{prefix}q_a_proj", row_name) if compressed else (row_name,),
                outputs=(Shard.whole(compressed), row) if compressed else (row,),
                inputs=hidden,
                bias=spec.qkv_bias,
                interleaved=(None, rope_of(row.size)) if compressed else (rope_of(row.size),),
            ),
            query=LinearSpec(
                names=(f"{prefix}{'q_b_proj' if compressed else 'q_proj'}",),
                outputs=(heads.times(head_dim),),
                inputs=Shard.whole(compressed) if compressed else hidden,
                interleaved=(rope_of(head_dim),),
            ),
            output=LinearSpec(
                names=(f"{prefix}o_proj",), outputs=(hidden,), inputs=heads.times(dims.value_dim), bias=spec.output_bias
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaProducts:
    key: Shard
    value: Shard
    """Heads."""
    inputs: LinearSpec
    """To queries, keys and values by heads, then the output's gates."""
    rates: LinearSpec
    output: LinearSpec

    @staticmethod
    def of(prefix: str, dims: DeltaDimensions, spec: DecoderSpec, place: Place) -> DeltaProducts:
        key = place.share(dims.key_heads, "key heads of the delta rule")
        value = place.share(dims.value_heads, "value heads of the delta rule")
        keys, values, hidden = key.times(dims.key_dim), value.times(dims.value_dim), Shard.whole(spec.hidden_size)
        shared = dims.value_heads // dims.key_heads
        by_head = (dims.key_dim, dims.key_dim, shared * dims.value_dim, shared * dims.value_dim)
        return DeltaProducts(
            key=key,
            value=value,
            inputs=LinearSpec(
                names=(f"{prefix}.in_proj_qkvz",),
                outputs=(keys, keys, values, values),
                inputs=hidden,
                interleaved=(Grouped(groups=dims.key_heads, sizes=by_head),),
            ),
            rates=LinearSpec(
                names=(f"{prefix}.in_proj_ba",),
                outputs=(value, value),
                inputs=hidden,
                interleaved=(Grouped(groups=dims.key_heads, sizes=(shared, shared)),),
                role="router",
            ),
            output=LinearSpec(names=(f"{prefix}.out_proj",), outputs=(hidden,), inputs=values),
        )
