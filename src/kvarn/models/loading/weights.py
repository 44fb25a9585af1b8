"""From named tensors to what a rank multiplies: declared, sliced, merged, cast and packed once, at load."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import torch

from kvarn.kernels.backend import Kernels
from kvarn.kernels.errors import KernelInputError
from kvarn.kernels.linear import LayerNorm, Linear, Norm
from kvarn.kernels.weights import Quantization, Weight, concatenate
from kvarn.models.formats import WeightFormat, weight_format
from kvarn.models.loading.checkpoint import Checkpoint
from kvarn.models.loading.packed_cache import PackedCache
from kvarn.models.parallel.row import RowParallelLinear
from kvarn.models.parallel.tensor import Parallel
from kvarn.specs.held import quantization_of
from kvarn.specs.place import ParallelError, Shard
from kvarn.specs.products import LinearSpec, Role

_log = logging.getLogger(__name__)


class WeightLoader:
    """Reads one rank's part of a checkpoint, onto the device of its kernels."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        kernels: Kernels,
        dtype: torch.dtype,
        parallel: Parallel,
        quantization: Quantization | None = None,
        packed_cache: PackedCache | None = None,
    ) -> None:
        self.kernels = kernels
        self.device = kernels.device.torch_device
        self.dtype = dtype
        self.parallel = parallel
        self.layers: list[tuple[LinearSpec, Linear]] = []
        """Those that adapters can change, in the order of their `adapter_layer`."""
        self._checkpoint = checkpoint
        self._quantization = quantization
        self._packed_cache = packed_cache
        self._warned: set[str] = set()
        self._format: WeightFormat = weight_format(checkpoint, self._warn_once)

    def __contains__(self, name: str) -> bool:
        return name in self._checkpoint

    @property
    def quantization(self) -> str:
        """The checkpoint's own method, or the quantization at load, or empty."""
        return self._format.name or self._quantization or ""

    @property
    def num_parameters(self) -> int:
        return self._format.num_parameters(self._checkpoint.shapes)

    @property
    def min_bytes(self) -> float:
        """Bytes that this rank's weights take at least: packing and what is kept plain come on top."""
        if self._format.name:
            total: float = sum(file.stat().st_size for file in self._checkpoint.files)
        else:
            held = {None: self.dtype.itemsize, "int8": 1.0, "fp8": 1.0, "int4": 0.5}
            total = self.num_parameters * held[self._quantization]
        return total / self.parallel.world_size

    def linear(self, spec: LinearSpec) -> Linear:
        """All outputs as one product; the sum of several, in a fixed order, where the inputs are divided."""
        if spec.inputs.divided:
            return self._row_parallel(spec)
        layer = self._kept(spec.name)
        if layer is None:
            layer = self._pack(spec, spec.name, self._weights(spec), self._bias(spec) if spec.bias else None)
        self._number(spec, layer)
        return layer

    def _row_parallel(self, spec: LinearSpec) -> RowParallelLinear:
        """A product over this rank's parts of the inputs, each packed by itself."""
        names = [f"{spec.name}/{number}" for number in spec.inputs.part_numbers()]
        parts = [self._kept(name) for name in names]
        if sum(part.in_features for part in parts if part is not None) != len(spec.inputs.held):
            try:
                weight = self._joined(spec, self._weights(spec))
                columns = spec.inputs.parts(weight.group)
                pieces = [weight.columns(each) if each else None for each in columns]
            except (KernelInputError, ParallelError) as error:
                raise ParallelError(
                    f"{spec.names[0]} cannot be divided for tensor parallelism: {error}; use fewer ranks, or one"
                ) from error
            pairs = zip(names, pieces, strict=True)
            parts = [None if piece is None else self._pack(spec, name, [piece], None) for name, piece in pairs]
        first = spec.inputs.held.start
        for part in filter(None, parts):
            inputs = Shard(spec.inputs.size, range(first, first + part.in_features))
            self._number(replace(spec, inputs=inputs), part)
            first = inputs.held.stop
        bias = self._bias(spec).float().to(self.device) if spec.bias else None
        return RowParallelLinear(parts, bias, None if spec.inputs.is_whole else self.parallel)

    def _number(self, spec: LinearSpec, layer: Linear) -> None:
        if spec.role == "layer":
            layer.adapter_layer = len(self.layers)
            self.layers.append((spec, layer))

    def _kept(self, name: str) -> Linear | None:
        return None if self._packed_cache is None else self._packed_cache.find(name)

    def _pack(self, spec: LinearSpec, name: str, weights: Sequence[Weight], bias: torch.Tensor | None) -> Linear:
        if any(weight.format != "float" for weight in weights):
            weights = [self._joined(spec, weights)]
        if weights[0].format == "float":
            plain = [weight.values for weight in weights]
            layer = self.kernels.packer.pack_plain(plain, self._form_of(spec.role), bias, spec.activation)
        else:
            layer = self.kernels.packer.pack_linear(weights[0], bias, spec.activation)
        if self._packed_cache is not None:
            self._packed_cache.keep(name, layer)
        return layer

    def _form_of(self, role: Role) -> torch.dtype | Quantization:
        return quantization_of(role, self._quantization) or self.dtype

    def plain(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        return self._checkpoint.tensor(name, shape)

    def norm(self, name: str, size: int, eps: float, offset: float = 0.0) -> Norm:
        """A norm of `size` numbers in float32, `offset` added to its weight."""
        weight = self._checkpoint.tensor(f"{name}.weight", (size,)).float() + offset
        return Norm(weight.to(self.device), eps)

    def layer_norm(self, name: str, size: int, eps: float, *, bias: bool = True) -> LayerNorm:
        dtype, device = self.kernels.operations.activation_dtype(self.dtype), self.device
        weight = self._checkpoint.tensor(f"{name}.weight", (size,)).to(device, dtype)
        shift = self._checkpoint.tensor(f"{name}.bias", (size,)).to(device, dtype) if bias else None
        return LayerNorm(weight, shift, eps)

    def embedding(self, name: str, rows: Shard, size: int) -> torch.Tensor:
        """This rank's rows of an embedding [rows, size]."""
        part = self._format.read(name, (rows.size, size)).rows(rows.held)
        plain = part.values if part.format == "float" else part.in_input_order()
        return plain.to(self.device, self.dtype)

    def float_weight(self, name: str, shape: tuple[int, int]) -> torch.Tensor:
        """A whole weight [out, in] as the numbers it stands for, in the type of plain weights."""
        weight = self._format.read(name, shape)
        plain = weight.values if weight.format == "float" else weight.in_input_order()
        return plain.to(self.device, self.dtype)

    def finish(self) -> None:
        """All is loaded: keep what was packed for the next start, where that is configured."""
        if self._packed_cache is not None:
            self._packed_cache.save()
        self._checkpoint.finish()

    def _weights(self, spec: LinearSpec) -> list[Weight]:
        """This rank's rows of all outputs, in parts one below the other."""
        parts: list[Weight] = []
        for stack in spec.stacks():
            shape, expert = (stack.rows, spec.inputs.size), spec.expert
            read, read_expert = self._format.read, self._format.read_expert
            whole = read(stack.name, shape) if expert is None else read_expert(stack.name, expert, shape)
            whole = whole if stack.order is None else whole.rows(torch.from_numpy(stack.order))
            parts += [whole.rows(rows) for rows in stack.held]
        return parts

    def _joined(self, spec: LinearSpec, parts: Sequence[Weight]) -> Weight:
        joined = concatenate(parts, self.device)
        if joined is not None:
            return joined
        self._warn_once(
            "some projections that are multiplied as one are quantized in different ways: they are served as plain "
            f"weights (such as {' and '.join(spec.names)})"
        )
        return Weight(torch.cat([part.in_input_order().to(self.dtype) for part in parts]))

    def _bias(self, spec: LinearSpec) -> torch.Tensor:
        parts: list[torch.Tensor] = []
        for stack in spec.stacks():
            if spec.expert is None:
                whole = self._checkpoint.tensor(f"{stack.name}.bias", (stack.rows,))
            else:
                whole = self._checkpoint.part(f"{stack.name}_bias", spec.expert, (stack.rows,))
            whole = whole if stack.order is None else whole[torch.from_numpy(stack.order)]
            parts += [whole[rows.start : rows.stop] for rows in stack.held]
        return torch.cat(parts).to(self.dtype)

    def _warn_once(self, message: str) -> None:
        """Tell the operator, once for all layers (`message` names one of them in brackets)."""
        kind = message.partition("(")[0]
        if kind not in self._warned:
            self._warned.add(kind)
            _log.warning(message)
