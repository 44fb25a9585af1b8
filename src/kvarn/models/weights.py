"""From named tensors to what a rank multiplies: declared, sliced, merged, cast and packed once, at load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kvarn.kernels.activation import Activation
from kvarn.kernels.dispatch import Kernels
from kvarn.kernels.linear import Linear
from kvarn.models.checkpoint import Checkpoint
from kvarn.models.parallel import Parallel, Shard


@dataclass(frozen=True, slots=True)
class Output:
    """Output features of a projection, and those of them that this rank computes."""

    features: int
    held: range


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """A linear layer as the checkpoint stores it."""

    names: tuple[str, ...]
    """Without `.weight`: one for each output, or a single one that holds them all, one below the other."""
    outputs: tuple[Output, ...]
    inputs: int
    held_inputs: range | None = None
    """Input features this rank multiplies; None: all."""
    bias: bool = False
    activation: Activation | None = None
    """The two outputs are gate and up: the layer gives activation(gate) * up."""

    @property
    def shard(self) -> Shard:
        """How the weight is divided among ranks."""
        if self.held_inputs is not None and len(self.held_inputs) < self.inputs:
            return Shard.ROW
        whole = all(len(output.held) == output.features for output in self.outputs)
        return Shard.REPLICATED if whole else Shard.COLUMN


class WeightLoader:
    """Reads one rank's part of a checkpoint."""

    def __init__(self, checkpoint: Checkpoint, kernels: Kernels, dtype: torch.dtype, parallel: Parallel) -> None:
        self._checkpoint = checkpoint
        self._kernels = kernels
        self._dtype = dtype
        self._parallel = parallel

    def linear(self, projection: Projection) -> Linear:
        """All outputs of a projection as one product. A bias after a sum over ranks is added by rank 0 alone."""
        weight = self._rows([f"{name}.weight" for name in projection.names], projection, (projection.inputs,))
        if projection.held_inputs is not None:
            weight = weight[:, projection.held_inputs.start : projection.held_inputs.stop]
        bias = None
        if projection.bias and (projection.shard is not Shard.ROW or self._parallel.rank == 0):
            bias = self._rows([f"{name}.bias" for name in projection.names], projection, ()).to(self._dtype)
        return self._kernels.pack_linear(weight.to(self._dtype), bias, projection.activation)

    def norm(self, name: str, size: int, offset: float = 0.0, held: range | None = None) -> torch.Tensor:
        """A norm's weight [size] in float32, `offset` added; only the numbers `held` where a rank has a part."""
        weight = self._checkpoint.tensor(f"{name}.weight", (size,)).float() + offset
        return weight if held is None else weight[held.start : held.stop]

    def layer_norm(self, name: str, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Weight and bias [size] of a layer norm, in the model's dtype."""
        weight = self._checkpoint.tensor(f"{name}.weight", (size,)).to(self._dtype)
        return weight, self._checkpoint.tensor(f"{name}.bias", (size,)).to(self._dtype)

    def embedding(self, name: str, vocab_size: int, hidden_size: int) -> torch.Tensor:
        """This rank's rows of an embedding [vocab_size, hidden_size]."""
        share = self._parallel.vocab_share(vocab_size)
        weight = self._checkpoint.tensor(f"{name}.weight", (vocab_size, hidden_size))
        return weight[share.start : share.stop].to(self._dtype)

    def _rows(self, names: Sequence[str], projection: Projection, rest: tuple[int, ...]) -> torch.Tensor:
        outputs = projection.outputs
        if len(names) == len(outputs):
            tensors = [self._checkpoint.tensor(n, (o.features, *rest)) for n, o in zip(names, outputs, strict=True)]
        else:
            sizes = [output.features for output in outputs]
            (name,) = names
            tensors = list(torch.split(self._checkpoint.tensor(name, (sum(sizes), *rest)), sizes))
        parts = [t[o.held.start : o.held.stop] for t, o in zip(tensors, outputs, strict=True)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)
