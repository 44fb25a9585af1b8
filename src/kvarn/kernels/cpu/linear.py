"""Linear layers on weights packed for the compiled kernels."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvarn.kernels.adapters import AdapterBatch
from kvarn.kernels.cpu import _native
from kvarn.kernels.cpu.adapters import native_adapters
from kvarn.kernels.cpu.packing import ACTIVATION_NUMBERS, PackedWeight
from kvarn.kernels.errors import KernelInputError
from kvarn.kernels.linear import Norm


class CpuLinear:
    """See `kvarn.kernels.linear.Linear`. Calls from several threads on one backend take turns."""

    def __init__(self, backend: _native.Backend, packed: PackedWeight) -> None:
        """`backend` is of the instruction set that multiplies. Raises as `PackedWeight.native`."""
        self.packed = packed
        self.out_features = packed.out // (1 if packed.activation is None else 2)
        self.in_features = packed.in_features
        self.nbytes = packed.blob.nbytes
        self.input_order = packed.input_order
        self.adapter_layer = -1
        self._native = packed.native()
        self._multiply = backend.linear
        self._activation = ACTIVATION_NUMBERS[packed.activation]
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
        out = x.new_empty((x.shape[0], self.out_features)) if add_to is None else add_to
        check_rows(x, self.in_features, out, self.out_features)
        norm_weight, eps = (0, 0.0) if norm is None else (address_of_norm(norm, self.in_features), norm.eps)
        adapted = () if self.adapter_layer < 0 else (native_adapters(adapters), self.adapter_layer)
        self._multiply(
            self._native,
            x.data_ptr(),
            x.shape[0],
            x.stride(0),
            norm_weight,
            eps,
            self._activation,
            self._bias,
            out.data_ptr(),
            out.stride(0),
            add_to is not None,
            *adapted,
        )
        return out

    @property
    def native(self) -> _native.PackedWeight:
        """The weight, for compiled code that takes several layers; this layer must outlive it."""
        return self._native

    def product(self, norm: Norm | None) -> _native.Product:
        """The weight with all that is done beside its product; layer and norm must outlive it."""
        own = native_norm(norm, self.in_features)
        return _native.Product(self._native, own, self._activation, self._bias, self.adapter_layer)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows `ids` [N] int64 of the weight that was packed: [N, in_features] float32.

        Raises KernelInputError where an id is not that of a row.
        """
        ids = ids.contiguous()
        if ids.dtype != torch.int64 or ids.dim() != 1:
            raise KernelInputError(f"row ids are int64 [N], not {ids.dtype} {tuple(ids.shape)}")
        if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= self.packed.out):
            raise KernelInputError(f"row ids must lie between 0 and {self.packed.out - 1}")
        out = torch.empty((len(ids), self.in_features))
        _native.unpack_rows(self._native, ids.data_ptr(), len(ids), out.data_ptr())
        return out if self.input_order is None else torch.empty_like(out).index_copy_(1, self.input_order, out)


class CpuHeadProducts:
    """See `kvarn.kernels.operations.HeadProducts`: a product for each head; no row depends on its neighbours."""

    def __init__(self, heads: Sequence[CpuLinear]) -> None:
        self._heads = heads
        self.nbytes = sum(head.nbytes for head in heads)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """One compiled call a head."""
        return torch.stack([product(x[:, head]) for head, product in enumerate(self._heads)], 1)


def check_rows(x: torch.Tensor, x_size: int, out: torch.Tensor, out_size: int) -> None:
    """Raise KernelInputError unless x [T, x_size] and out [T, out_size] are float32 with rows the kernels can read."""
    for name, tensor, size in (("x", x, x_size), ("add_to", out, out_size)):
        wrong = tensor.dtype != torch.float32 or tensor.shape != (x.shape[0], size)
        if wrong or (size > 1 and tensor.stride(1) != 1):
            found = f"{tensor.dtype} {tuple(tensor.shape)} with strides {tensor.stride()}"
            raise KernelInputError(f"{name} must be float32 [T, {size}] with contiguous rows, not {found}")
    if len(out) > 1 and out.stride(0) < out_size:
        raise KernelInputError("the rows of add_to must not overlap: threads write them at the same time")


def address_of_norm(norm: Norm, size: int) -> int:
    """Where the weight of a norm of `size` numbers is."""
    weight = norm.weight
    if weight.shape != (size,) or weight.dtype != torch.float32 or not weight.is_contiguous():
        raise KernelInputError(f"the norm of {size} numbers needs as many float32 weights, side by side")
    return weight.data_ptr()


def native_norm(norm: Norm | None, size: int) -> _native.NormWeight:
    """A norm of `size` numbers, for compiled code; it must outlive that."""
    return _native.NormWeight() if norm is None else _native.NormWeight(address_of_norm(norm, size), norm.eps)
