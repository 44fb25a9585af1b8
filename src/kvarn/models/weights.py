"""From named tensors to what a rank multiplies: declared, sliced, merged, cast and packed once, at load."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kvarn.kernels.activation import Activation
from kvarn.kernels.dispatch import Kernels
from kvarn.kernels.linear import Linear
from kvarn.models.checkpoint import Checkpoint
from kvarn.models.formats import WeightFormat, weight_format
from kvarn.models.packed_cache import PackedCache
from kvarn.models.parallel import Parallel, Shard
from kvarn.models.quantise import HEAD_QUANTIZATION, Quantization, quantise
from kvarn.models.weight_parts import ReorderedLinear, WeightPart, join_outputs

_log = logging.getLogger(__name__)


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
    keep_plain: bool = False
    """Never quantised at load: a router's choice of experts flips on small errors, and its weight is small."""

    @property
    def shard(self) -> Shard:
        """How the weight is divided among ranks."""
        if self.held_inputs is not None and len(self.held_inputs) < self.inputs:
            return Shard.ROW
        whole = all(len(output.held) == output.features for output in self.outputs)
        return Shard.REPLICATED if whole else Shard.COLUMN


class WeightLoader:
    """Reads one rank's part of a checkpoint."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        kernels: Kernels,
        dtype: torch.dtype,
        parallel: Parallel,
        quantization: Quantization | None = None,
        packed: PackedCache | None = None,
    ) -> None:
        self.kernels = kernels
        self.dtype = dtype
        self.parallel = parallel
        self._checkpoint = checkpoint
        self._quantization = quantization
        self._packed = packed
        self._noted: set[str] = set()
        self._format: WeightFormat = weight_format(checkpoint, self._note)

    def __contains__(self, name: str) -> bool:
        """Whether the checkpoint has a tensor of that name."""
        return name in self._checkpoint

    @property
    def quantization(self) -> str:
        """How weights are held: as they are quantised at load, by the checkpoint's own method, or empty."""
        return self._format.name or self._quantization or ""

    @property
    def num_parameters(self) -> int:
        """Numbers the checkpoint's tensors stand for."""
        return self._format.num_parameters(self._checkpoint.shapes)

    @property
    def least_bytes(self) -> float:
        """Bytes that this rank's weights take at least: packing and what is kept plain come on top."""
        if self._format.name:
            total: float = sum(file.stat().st_size for file in self._checkpoint.files)
        else:
            total = self.num_parameters * {None: self.dtype.itemsize, "int8": 1.0, "int4": 0.5}[self._quantization]
        return total / self.parallel.world_size

    def linear(self, projection: Projection) -> Linear:
        """All outputs of a projection as one product. A bias after a sum over ranks is added by rank 0 alone."""
        name = "+".join(projection.names)
        if (found := self._find(name)) is not None:
            return found
        part = self._joined(self._parts(projection), projection.names)
        if projection.held_inputs is not None and len(projection.held_inputs) < projection.inputs:
            part = part.inputs(projection.held_inputs, projection.names[0])
        bias = None
        if projection.bias and (projection.shard is not Shard.ROW or self.parallel.rank == 0):
            bias = self._bias(projection).to(self.dtype)
        to = None if projection.keep_plain else self._quantization
        return self._pack(name, part, to, bias, projection.activation)

    def head(self, name: str, vocab_size: int, hidden_size: int) -> Linear:
        """This rank's rows of the output head [vocab_size, hidden_size], which may be the embedding too."""
        if (found := self._find(name)) is not None:
            return found
        share = self.parallel.vocab_share(vocab_size)
        part = self._format.read(name, (vocab_size, hidden_size)).outputs(share)
        return self._pack(name, part, HEAD_QUANTIZATION if self._quantization else None)

    def norm(self, name: str, size: int, offset: float = 0.0, held: range | None = None) -> torch.Tensor:
        """A norm's weight [size] in float32, `offset` added; only the numbers `held` where a rank has a part."""
        weight = self._checkpoint.tensor(f"{name}.weight", (size,)).float() + offset
        return weight if held is None else weight[held.start : held.stop]

    def layer_norm(self, name: str, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Weight and bias [size] of a layer norm, in the activations' type."""
        dtype = self.kernels.activation_dtype(self.dtype)
        weight = self._checkpoint.tensor(f"{name}.weight", (size,)).to(dtype)
        return weight, self._checkpoint.tensor(f"{name}.bias", (size,)).to(dtype)

    def embedding(self, name: str, vocab_size: int, hidden_size: int) -> torch.Tensor:
        """This rank's rows of an embedding [vocab_size, hidden_size]."""
        part = self._format.read(name, (vocab_size, hidden_size)).outputs(self.parallel.vocab_share(vocab_size))
        plain = part.weight if isinstance(part.weight, torch.Tensor) else part.dequantised()
        return plain.to(self.dtype)

    def finish(self) -> None:
        """All is loaded: keep what was packed for the next start, where that is asked for."""
        if self._packed is not None:
            self._packed.save()
        self._checkpoint.finish()

    def _find(self, name: str) -> Linear | None:
        return None if self._packed is None else self._packed.find(name)

    def _pack(
        self,
        name: str,
        part: WeightPart,
        to: Quantization | None,
        bias: torch.Tensor | None = None,
        activation: Activation | None = None,
    ) -> Linear:
        weight = part.weight
        if isinstance(weight, torch.Tensor):
            weight = weight.to(self.dtype) if to is None else quantise(weight, to)
        linear = self.kernels.pack_linear(weight, bias, activation)
        if part.input_order is not None:
            linear = ReorderedLinear(linear, part.input_order)
        if self._packed is not None:
            self._packed.keep(name, linear)
        return linear

    def _parts(self, projection: Projection) -> list[WeightPart]:
        """What this rank holds of each output."""
        outputs, inputs = projection.outputs, projection.inputs
        if len(projection.names) == len(outputs):
            wholes = zip(projection.names, outputs, strict=True)
            return [self._format.read(name, (o.features, inputs)).outputs(o.held) for name, o in wholes]
        (name,) = projection.names
        whole = self._format.read(name, (sum(output.features for output in outputs), inputs))
        return [whole.outputs(rows) for rows in _stacked(outputs)]

    def _bias(self, projection: Projection) -> torch.Tensor:
        outputs, names = projection.outputs, [f"{name}.bias" for name in projection.names]
        if len(names) == len(outputs):
            wholes = zip(names, outputs, strict=True)
            parts = [self._checkpoint.tensor(n, (o.features,))[o.held.start : o.held.stop] for n, o in wholes]
        else:
            whole = self._checkpoint.tensor(names[0], (sum(output.features for output in outputs),))
            parts = [whole[rows.start : rows.stop] for rows in _stacked(outputs)]
        return torch.cat(parts)

    def _joined(self, parts: Sequence[WeightPart], names: Sequence[str]) -> WeightPart:
        joined = join_outputs(parts)
        if joined is not None:
            return joined
        self._note(
            "some projections that are multiplied as one are quantised in different ways: they are served as plain "
            f"weights (such as {' and '.join(names)})"
        )
        return WeightPart(torch.cat([part.dequantised().to(self.dtype) for part in parts]))

    def _note(self, message: str) -> None:
        """Say what the operator should know, once for all layers (`message` names one of them in brackets)."""
        kind = message.partition("(")[0]
        if kind not in self._noted:
            self._noted.add(kind)
            _log.warning(message)


def _stacked(outputs: Sequence[Output]) -> list[range]:
    """Rows held of each output where all stand in one tensor, one below the other."""
    rows, first = [], 0
    for output in outputs:
        rows.append(range(first + output.held.start, first + output.held.stop))
        first += output.features
    return rows
