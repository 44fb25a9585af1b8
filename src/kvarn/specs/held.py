"""Types and forms in which an engine holds plain weights, keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from kvarn.shapes import KvDtype
from kvarn.shapes.packing import Dtype, Quantization
from kvarn.specs.errors import UnsupportedModelError
from kvarn.specs.products import Role
from kvarn.specs.spec import DecoderSpec

HELD_DTYPES: Mapping[str, Dtype] = {
    "float32": "float32",
    "float16": "float32",
    "half": "float32",
    "bfloat16": "bfloat16",
}
"""The type of plain weights by the setting `dtype`. No kernel multiplies float16: float32 holds its values exactly,
bfloat16 does not."""

HEAD_QUANTIZATION: Quantization | None = "int8"
"""Form of the output head in all modes; None: it stays plain. docs/guides/quantization.md: costs and savings."""


def quantization_of(role: Role, quantization: Quantization | None) -> Quantization | None:
    """The form that a plain weight of this role gets at load; None: it stays plain."""
    if quantization is None or role == "router":
        return None
    return HEAD_QUANTIZATION if role == "head" else quantization


def cache_type(spec: DecoderSpec, dtype: Dtype, quantization: str | None, wanted: KvDtype | Literal["auto"]) -> KvDtype:
    """Type of cached keys and values. `auto`: the weights', bfloat16 where they are quantized.

    Raises UnsupportedModelError where the model's attention is not cached in the type.
    """
    chosen: KvDtype = "float32" if dtype == "float32" and not quantization else "bfloat16"
    kv_dtype = chosen if wanted == "auto" else wanted
    for kind in spec.attention_kinds:
        if kv_dtype not in kind.cache_dtypes:
            raise UnsupportedModelError(
                f"{spec.architecture} caches {' or '.join(kind.cache_dtypes)}: set kv_cache_dtype to one, or auto"
            )
    return kv_dtype
