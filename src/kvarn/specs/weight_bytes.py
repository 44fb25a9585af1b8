"""Bytes of a rank's weights as its kernels hold them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvarn.shapes.packing import DTYPE_BYTES, Dtype, Kernels, PackedForm, Quantization
from kvarn.specs.held import quantization_of
from kvarn.specs.place import ParallelError, Place
from kvarn.specs.products import LinearSpec
from kvarn.specs.rank_weights import HeadWeights, Held, Numbers, Table, WeightPart, rank_weights
from kvarn.specs.spec import DecoderSpec
from kvarn.specs.stored import StoredQuantization


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightForms:
    """The rule by which weights are held."""

    kernels: Kernels = "gpu"
    dtype: Dtype = "bfloat16"
    """Type of plain weights."""
    stored: StoredQuantization | None = None
    """Quantization of the checkpoint."""
    quantization: Quantization | None = None
    """Quantization of plain weights at load."""

    def form(self, product: LinearSpec) -> PackedForm:
        stored = None if self.stored is None else self.stored.form(product)
        if stored is not None:
            return stored
        quantized = quantization_of(product.role, self.quantization)
        return PackedForm(format=self.dtype) if quantized is None else PackedForm.quantized(quantized)

    def num_bytes(self, held: Held) -> int:
        """Bytes of one weight, with its bias. Raises ParallelError where ranks would cut a group of inputs."""
        match held:
            case LinearSpec():
                return self._linear(held) + self._beside(held)
            case Table(rows, size):
                return rows * size * DTYPE_BYTES[self.dtype]
            case HeadWeights(heads, out, inputs):
                return heads * PackedForm(format=self.dtype).num_bytes(self.kernels, out, inputs)
            case Numbers(count, of_activations):
                # Processors compute in float32, GPUs in the type of the weights.
                small = of_activations and self.kernels == "gpu"
                return count * (DTYPE_BYTES[self.dtype] if small else 4)

    def product_bytes(self, held: Held) -> int:
        """Bytes that a product reads, in the engine's own count (`Linear.nbytes`): no bias, no order of inputs."""
        if isinstance(held, LinearSpec):
            return self._linear(held)
        return self.num_bytes(held) if isinstance(held, HeadWeights) else 0

    def _linear(self, product: LinearSpec) -> int:
        form, out = self.form(product), sum(len(each.held) for each in product.outputs)
        divided, gated = product.inputs.divided, product.activation is not None
        if divided and form.reordered:
            raise ParallelError(f"{product.name} is quantized with its inputs reordered (desc_act), and cannot be cut")
        stored_group = 0 if self.stored is None or self.stored.form(product) is None else form.group
        parts = product.inputs.parts(stored_group) if divided else [product.inputs.held]
        return sum(form.num_bytes(self.kernels, out, len(part), gated=gated) for part in parts if part)

    def _beside(self, product: LinearSpec) -> int:
        """Bytes of the bias, and of the order in which inputs are taken."""
        out, wide = sum(len(each.held) for each in product.outputs), self.kernels == "cpu" or product.inputs.divided
        bias = out * (4 if wide else DTYPE_BYTES[self.dtype]) if product.bias else 0
        return bias + (8 * product.inputs.size if self.form(product).reordered else 0)


def weight_bytes(spec: DecoderSpec, place: Place, forms: WeightForms) -> Mapping[WeightPart, int]:
    """Bytes that the weights of a rank take, by part of the model, in the order of a step.

    Raises ParallelError or StageError where the model cannot be divided so.
    """
    found: dict[WeightPart, int] = dict.fromkeys(
        ("embedding", "attention", "mlp", "router", "experts", "norms", "head"), 0
    )
    by_layer = forms.stored is not None and forms.stored.differs_by_layer
    for each in rank_weights(spec, place, by_layer=by_layer):
        found[each.part] += each.times * forms.num_bytes(each.held)
    return {part: count for part, count in found.items() if count}


def product_bytes(spec: DecoderSpec, place: Place, forms: WeightForms) -> tuple[int, int]:
    """Bytes that a rank's products of all layers read, and those of its head (`Decoder.layer_bytes`, `head_bytes`)."""
    layers = head = 0
    by_layer = forms.stored is not None and forms.stored.differs_by_layer
    for each in rank_weights(spec, place, by_layer=by_layer):
        count = each.times * forms.product_bytes(each.held)
        if each.part == "head":
            head += count
        else:
            layers += count
    return layers, head


def num_parameters(spec: DecoderSpec) -> int:
    """Numbers in the whole model, tied ones counted once."""
    return sum(each.times * each.parameters for each in rank_weights(spec, Place()))
