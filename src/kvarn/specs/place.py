"""Parts of a model that a rank holds: of each weight (Megatron-LM, Shoeybi et al. 2019), of the layers, of the experts.

Sums over a divided dimension are taken in one order at every degree: the dimension has `PARTITION` parts whatever the
number of ranks, a rank holds some that lie side by side, and parts are added in a binary tree
(docs/internals/determinism.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from kvarn.shapes import KvDtype
from kvarn.shapes.decoder import DecoderShape
from kvarn.specs.errors import ModelError
from kvarn.specs.expert_placement import ExpertPlacement, balance_experts

PARTITION = 8
"""Parts of a divided sum, and the largest number of ranks that share a layer."""
DEGREES = (1, 2, 4, 8)
"""Numbers of ranks among which `PARTITION` parts are divided so that each has a whole subtree of the sum."""


class StageError(ModelError):
    """The model cannot be divided into so many stages."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Consecutive layers of a model (GPipe, Huang et al. 2019). The default: all of them."""

    index: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        return self.index == 0

    @property
    def is_last(self) -> bool:
        return self.index == self.count - 1

    def layers(self, num_layers: int) -> range:
        """The stage's layers; stages differ by one layer at most.

        Raises StageError where there are more stages than layers.
        """
        if self.count > num_layers:
            raise StageError(
                f"{num_layers} layers cannot be divided into {self.count} stages: lower pipeline_parallel_size"
            )
        return range(self.index * num_layers // self.count, (self.index + 1) * num_layers // self.count)


ALL_LAYERS = Stage()  # the only stage of a model that is not divided so


def fullest_stage_share(shape: DecoderShape, dtype: KvDtype, stages: int) -> float:
    """Part of a block, or of a sequence's recurrent states, that the stage which holds most of it holds.

    Raises StageError where there are more stages than layers.
    """
    found = [Stage(index, stages).layers(shape.num_layers) for index in range(stages)]
    kinds = [[shape.layers[layer].attention for layer in stage] for stage in found]
    shares = [1 / stages]
    for whole, held in (
        (shape.kv_bytes_per_token(dtype), [sum(kind.cache_bytes_per_token(dtype) for kind in own) for own in kinds]),
        (shape.state_bytes, [sum(kind.state_bytes for kind in own) for own in kinds]),
    ):
        if whole:
            shares.append(max(held) / whole)
    return max(shares)


def even_ranks(shape: DecoderShape, dtype: KvDtype, ranks: int, stages: int) -> float:
    """Number of ranks, were each to hold as much of the KV cache as one of the fullest stage does: stages differ by a
    layer, and all ranks have as many blocks."""
    return ranks / (stages * fullest_stage_share(shape, dtype, stages))


class ParallelError(ValueError):
    """The model cannot be divided among so many ranks."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One rank's part of a dimension of a weight."""

    size: int
    held: range
    """The rank's part."""
    divided: bool = False
    """Sums over it are taken part by part."""

    @staticmethod
    def whole(size: int) -> Shard:
        return Shard(size, range(size))

    @property
    def is_whole(self) -> bool:
        return len(self.held) == self.size

    def times(self, count: int) -> Shard:
        """The same part where each unit stands for `count` numbers: the features of heads."""
        return Shard(self.size * count, range(self.held.start * count, self.held.stop * count), self.divided)

    def part_numbers(self) -> range:
        """The rank's parts, of the `PARTITION` parts of the whole dimension."""
        return range(self.held.start * PARTITION // self.size, self.held.stop * PARTITION // self.size)

    def parts(self, group: int = 0) -> list[range]:
        """Those parts in order, cut at multiples of `group` where there is one; some may be empty.

        Raises ParallelError where the rank's numbers do not begin and end with a group.
        """
        group = group or 1
        units = -(-self.size // group)
        bounds = [min(units * part // PARTITION * group, self.size) for part in range(PARTITION)] + [self.size]
        numbers = self.part_numbers()
        if (bounds[numbers.start], bounds[numbers.stop]) != (self.held.start, self.held.stop):
            raise ParallelError(
                f"inputs {self.held.start} to {self.held.stop} cut a group of {group} inputs that share a scale"
            )
        return [range(*bound) for bound in pairwise(bounds[numbers.start : numbers.stop + 1])]


@dataclass(frozen=True, slots=True)
class Place:
    """A rank's place among those that hold a model. The default: it holds everything."""

    rank: int = 0
    world_size: int = 1
    fixed_sums: bool = field(default=False, kw_only=True)
    """Take sums as several ranks do, also where there is one."""
    expert_parallel: bool = field(default=False, kw_only=True)
    """Ranks hold whole experts of a mixture, in place of a part of each."""
    expert_load: Mapping[int, Sequence[int]] = field(default_factory=dict, kw_only=True)
    """By layer: how many tokens each expert was given, as measured. Whole experts are placed by it."""
    redundant_experts: int = field(default=0, kw_only=True)
    """Places for experts in each layer, beyond one for each."""
    stage: Stage = field(default=ALL_LAYERS, kw_only=True)
    """The layers that the rank, and those that share them, hold."""

    def __post_init__(self) -> None:
        if self.world_size not in DEGREES:
            raise ParallelError(f"a layer can be shared by 1, 2, 4 or 8 ranks, not by {self.world_size}")
        if not 0 <= self.rank < self.world_size:
            raise ParallelError(f"rank {self.rank} is not one of {self.world_size}")

    @property
    def key(self) -> tuple[object, ...]:
        """Everything that the rank's weights depend on."""
        placed = sorted(self.expert_load.items()), self.redundant_experts
        of_experts = placed if self.expert_parallel else ()
        return self.rank, self.world_size, self.divides, of_experts, self.stage.index, self.stage.count

    @property
    def divides(self) -> bool:
        """Whether sums over what ranks share are taken part by part."""
        return self.fixed_sums or self.world_size > 1

    def share(self, total: int, what: str) -> Shard:
        """This rank's part of `total` units, which must divide evenly. `what` names them in the error."""
        if total % self.world_size:
            raise ParallelError(
                f"{total} {what} cannot be divided evenly among {self.world_size} ranks: lower tensor_parallel_size"
            )
        size = total // self.world_size
        return Shard(total, range(self.rank * size, (self.rank + 1) * size), self.divides)

    def undivided(self, total: int) -> Shard:
        """All of `total` units on this rank, with sums taken as if they were shared."""
        return Shard(total, range(total), self.divides)

    def kv_head_share(self, num_kv_heads: int) -> Shard:
        """This rank's key/value heads: a part of them, or one that several ranks hold where there are fewer heads."""
        if num_kv_heads >= self.world_size:
            return self.share(num_kv_heads, "key/value heads")
        if self.world_size % num_kv_heads:
            raise ParallelError(
                f"{num_kv_heads} key/value heads cannot be repeated over {self.world_size} ranks: lower "
                "tensor_parallel_size"
            )
        head = self.rank * num_kv_heads // self.world_size
        return Shard(num_kv_heads, range(head, head + 1))

    def expert_placement(self, layer: int, num_experts: int) -> ExpertPlacement:
        """The ranks of each expert of a layer: all hold a part of it, unless `expert_parallel`."""
        if not self.expert_parallel:
            return ExpertPlacement((tuple(range(self.world_size)),) * num_experts)
        tokens = self.expert_load.get(layer, ())
        if len(tokens) != num_experts:
            return ExpertPlacement.even(num_experts, self.world_size)
        return balance_experts(tokens, self.world_size, self.redundant_experts)

    def vocab_share(self, vocab_size: int) -> Shard:
        """This rank's token ids; the last rank has fewer where they do not divide evenly."""
        size = -(-vocab_size // self.world_size)
        return Shard(vocab_size, range(min(self.rank * size, vocab_size), min((self.rank + 1) * size, vocab_size)))
