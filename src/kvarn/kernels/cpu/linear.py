"""Linear layers on weights packed for the compiled kernels."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvarn.kernels.adapters import AdapterBatch
from kvarn.kernels.checks import check_rows
from kvarn.kernels.cpu import _native
from kvarn.kernels.cpu.adapters import native_adapters
from kvarn.kernels.cpu.packing import ACTIVATION_NUMBERS, PackedWeight
from kvarn.kernels.errors import KernelInputError
from kvarn.kernels.linear import Norm


class CpuLinear:
    """See `kvarn.kernels.linear.Linear`. Calls from several threads on one backend take turns."""

    def __init__(self, backend: _native.Backend, packed: PackedWeight) -> None:
        """`backend` is of the instruction set that multiplies. Raises as `PackedWeight.native`."""
        form = packed.form
        self.packed = packed
        self.out_features = form.out // (1 if form.activation is None else 2)
        self.in_features = form.in_features
        self.nbytes = packed.blob.nbytes
        self.input_order = packed.input_order
        self.adapter_layer = -1
        self.native = packed.native()
        """The weight, for compiled code that takes several layers; this layer must outlive it."""
        self._multiply = backend.linear
        self._activation = ACTIVATION_NUMBERS[form.activation]
        self._bias = 0 if packed.bias is None else packed.bias.data_ptr()

    def __call__(
        self,
        x: torch.Tensor,
        *,
        norm: Norm | None = None,
        add_to: torch.Tensor | None = None,
        adapters: AdapterBatch | None = None,
    ) -> torch.Tensor:
        """x [T, in_features] float32 times the weight: [T, out_features] float32.

        Raises KernelInputError where x or add_to has another shape or type, or rows that are not contiguous or overlap.
        """
        if self.input_order is not None:
            x = x[:, self.input_order]
            norm = None if norm is None else Norm(norm.weight[self.input_order], norm.eps)
        rows, outputs = x.shape[0], self.out_features
        check_rows(x, (rows, self.in_features), torch.float32)
        out = x.new_empty((rows, outputs)) if add_to is None else add_to
        if add_to is not None:
            check_output(out, (rows, outputs))
        norm_weight, eps = (0, 0.0) if norm is None else (address_of_norm(norm, self.in_features), norm.eps)
        own_adapters = None if self.adapter_layer < 0 else native_adapters(adapters)
        self._multiply(
            self.native,
            x=x.data_ptr(),
            rows=rows,
            x_stride=x.stride(0),
            norm=norm_weight,
            eps=eps,
            activation=self._activation,
            bias=self._bias,
            out=out.data_ptr(),
            out_stride=out.stride(0),
            accumulate=add_to is not None,
            adapters=own_adapters,
            layer=self.adapter_layer,
        )
        return out

    def product(self, norm: Norm | None) -> _native.Product:
        """The weight with all that is done beside its product; layer and norm must outlive it."""
        own = native_norm(norm, self.in_features)
        return _native.Product(self.native, own, self._activation, self._bias, self.adapter_layer)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows `ids` [N] int64 of the weight that was packed: [N, in_features] float32.

        Raises KernelInputError where an id is not that of a row.
        """
        ids = ids.contiguous()
        if ids.dtype != torch.int64 or ids.dim() != 1:
            raise KernelInputError(f"row ids are int64 [N], not {ids.dtype} {tuple(ids.shape)}")
        if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= self.packed.form.out):
            raise KernelInputError(f"row ids must lie between 0 and {self.packed.form.out - 1}")
        out = torch.empty((len(ids), self.in_features))
        _native.unpack_rows(self.native, ids.data_ptr(), len(ids), out.data_ptr())
        return out if self.input_order is None else torch.empty_like(out).index_copy_(1, self.input_order, out)


class CpuHeadProducts:
    """See `kvarn.kernels.linear.HeadProducts`: a product for each head, so that no row depends on its neighbours."""

    def __init__(self, heads: Sequence[CpuLinear]) -> None:
        self._heads = heads
        self.nbytes = sum(head.nbytes for head in heads)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([product(x[:, head]) for head, product in enumerate(self._heads)], 1)


def check_output(out: torch.Tensor, shape: tuple[int, int]) -> None:
    """Raise KernelInputError unless results [T, size] are float32 with rows that threads can write at the same time."""
    check_rows(out, shape, torch.float32)
    if shape[0] > 1 and out.stride(0) < shape[1]:
        raise KernelInputError("the rows of add_to must not overlap: threads write them at the same time")


def address_of_norm(norm: Norm, size: int) -> int:
    """The address of the weight of a norm of `size` numbers."""
    weight = norm.weight
    if weight.shape != (size,) or weight.dtype != torch.float32 or not weight.is_contiguous():
        raise KernelInputError(f"the norm of {size} numbers needs as many float32 weights, side by side")
    return weight.data_ptr()


def native_norm(norm: Norm | None, size: int) -> _native.NormWeight:
    """A norm of `size` numbers, for compiled code; it must outlive that."""
    return _native.NormWeight() if norm is None else _native.NormWeight(address_of_norm(norm, size), norm.eps)
