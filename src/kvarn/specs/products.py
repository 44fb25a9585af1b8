"""Linear layers as a checkpoint stores them, and a rank's part of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from kvarn.shapes.activation import Activation
from kvarn.specs.place import Shard

Role = Literal["layer", "expert", "head", "router"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interleaved:
    """Rows of a weight that stand in pairs, (0, 1), (2, 3), ..., where the kernels pair the first half with the second.

    In each `run` of rows (a head) these are `count` rows from `first` on.
    """

    run: int
    first: int
    count: int

    def order(self, rows: int) -> npt.NDArray[np.int64]:
        """[rows]: the rows as the kernels take them."""
        own = np.arange(self.run)
        pairs = own[self.first : self.first + self.count]
        own = np.concatenate([own[: self.first], pairs[::2], pairs[1::2], own[self.first + self.count :]])
        return (np.arange(0, rows, self.run)[:, None] + own).ravel()


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouped:
    """Rows of a weight that stand by groups (heads), where the kernels want what is of one kind together.

    Each of `groups` has `sizes[0]` rows of the first kind, then `sizes[1]` of the second, and so on.
    """

    groups: int
    sizes: tuple[int, ...]
    ranks: int = 1
    """The groups are divided evenly among so many; kinds are brought together for each."""

    def order(self, rows: int) -> npt.NDArray[np.int64]:
        """[rows]: the rows as the kernels take them, those of the first rank first."""
        by_group = np.arange(rows).reshape(self.ranks, self.groups // self.ranks, -1)
        kinds = np.split(by_group, np.cumsum(self.sizes)[:-1], axis=2)
        return np.concatenate([kind.reshape(self.ranks, -1) for kind in kinds], 1).ravel()


RowOrder = Interleaved | Grouped
"""Orders of rows in which the kernels do not take them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """One tensor of a linear layer: one output, or several one below the other."""

    name: str
    """Without `.weight`."""
    rows: int
    held: list[range]
    """This rank's rows of each output, once all rows are in `order`."""
    order: npt.NDArray[np.int64] | None = None
    """[rows]; None: as they are stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearSpec:
    """A linear layer as the checkpoint stores it, and this rank's part of it."""

    names: tuple[str, ...]
    """Without `.weight`: one for each output, or a single one that holds them all, one below the other."""
    outputs: tuple[Shard, ...]
    inputs: Shard
    bias: bool = False
    activation: Activation | None = None
    """The two outputs are gate and up: the layer gives activation(gate) * up."""
    interleaved: tuple[RowOrder | None, ...] = ()
    """Order of each tensor's rows; empty: as the kernels take them."""
    expert: int | None = None
    """Each tensor holds the weights of all experts: which of them. Its name is without a suffix."""
    role: Role = "layer"
    """Decides on quantization at load; adapters change only role `layer`. A router stays plain, since its choice of
    experts flips on small errors; so do the rates of a recurrent state, in which errors add up."""

    @property
    def name(self) -> str:
        name = "+".join(self.names)
        return name if self.expert is None else f"{name}.{self.expert}"

    def stacks(self) -> list[Stack]:
        """The tensors of the checkpoint."""
        pairs = self.interleaved or (None,) * len(self.names)
        sizes, held = [each.size for each in self.outputs], [[each.held] for each in self.outputs]
        if len(self.names) != len(self.outputs):
            firsts = [sum(sizes[:number]) for number in range(len(sizes))]
            shifted = zip(firsts, self.outputs, strict=True)
            held = [[range(first + each.held.start, first + each.held.stop) for first, each in shifted]]
            sizes = [sum(sizes)]
        return [
            Stack(name=name, rows=size, held=own, order=None if each is None else each.order(size))
            for name, size, own, each in zip(self.names, sizes, held, pairs, strict=True)
        ]
