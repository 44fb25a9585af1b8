"""Forms in which the layers of a quantized checkpoint are held, as its config.json says.

The loader asks the tensors themselves; this asks what the tools that quantize checkpoints say of them. Both come to the
same forms (`kvarn.models.formats`): tests load checkpoints and compare.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import re2
from pydantic import Field

from kvarn.shapes.packing import PackedForm
from kvarn.specs.errors import CheckpointError
from kvarn.specs.products import LinearSpec
from kvarn.specs.quantization import QuantizationConfig, QuantizedLayers, QuantizedWeights
from kvarn.text.json_file import validate

_WIDENED = ("fp8", "mxfp4")
_MAX_EXPRESSION_BYTES = 64 * 1024**2
_GROUP_STEP = 32
_WHOLE_ROW_STEP = 64
"""Groups that kernels know: see `kvarn.models.formats.quantized_values`."""


class StoredWeights(QuantizedWeights):
    """Weights of a group of layers of compressed-tensors, with the order of their inputs."""

    actorder: str | bool | None = None
    """`group` or true: inputs are ordered by their groups, which are then not of neighbours."""


class StoredLayers(QuantizedLayers):
    """One of the `config_groups` of compressed-tensors."""

    weights: StoredWeights | None = None


class StoredQuantization(QuantizationConfig):
    """`quantization_config`, with what says which layers are left plain and how groups are made."""

    desc_act: bool | None = None
    """GPTQ: inputs are ordered by their groups."""
    static_groups: bool | None = None
    """GPTQ: groups are of neighbouring inputs all the same."""
    zero_point: bool | None = None
    """AWQ: zero points are not all in the middle."""
    lm_head: bool | None = None
    """GPTQ: the head is quantized too."""
    config_groups: dict[str, StoredLayers] | None = None  # type: ignore[assignment]  # narrower
    modules_to_not_convert: list[str] | None = Field(None, max_length=2**20)
    """Parts of names of layers that are left plain."""
    ignore: list[str] | None = Field(None, max_length=2**20)
    """compressed-tensors: names of layers that are left plain, or expressions behind `re:`."""
    dynamic: dict[str, Any] | None = None
    """GPTQModel: settings of layers by expression; `-:` before one leaves its layers plain."""

    @staticmethod
    def of(config: Mapping[str, Any], where: Path) -> StoredQuantization | None:
        """The part of a config.json; None where weights are plain. Raises CheckpointError, and
        UnsupportedQuantizationError for what the engine does not read."""
        found = config.get("quantization_config") or config.get("compression_config")
        if not isinstance(found, dict) or not found:
            return None
        stored = validate(StoredQuantization, found, where)
        stored.check_supported()
        _ = stored._plain_expression, stored._schemes  # refused here, rather than amid a plan
        return stored

    @property
    def packed_method(self) -> str | None:
        """The method whose numbers the kernels multiply; None for one whose weights are widened when they are read."""
        return None if self.quant_method in _WIDENED else self.quant_method

    @property
    def differs_by_layer(self) -> bool:
        """Whether layers of one kind may be held in different forms."""
        return self._plain_expression is not None or bool(self._plain_names - {"lm_head"})

    @cached_property
    def _plain_names(self) -> frozenset[str]:
        return frozenset(self.ignore or ())

    @cached_property
    def _plain_expression(self) -> Any:
        parts = [f".*{re.escape(name)}" for name in self.modules_to_not_convert or ()]
        ignored = [name[3:] for name in self.ignore or () if name.startswith("re:")]
        dynamic = [name[2:] for name in self.dynamic or () if name.startswith("-:")]
        return _any_of([*parts, *ignored, *dynamic])

    @cached_property
    def _schemes(self) -> list[tuple[list[str], Any, StoredWeights | None]]:
        """Targets of each group of layers, those that are expressions as one, and how its weights are quantized."""
        groups = [(group.targets or ["Linear"], group.weights) for group in (self.config_groups or {}).values()]
        return [
            (targets, _any_of([each[3:] for each in targets if each.startswith("re:")]), weights)
            for targets, weights in groups
        ]

    def _is_plain(self, name: str) -> bool:
        return name in self._plain_names or (
            self._plain_expression is not None and self._plain_expression.match(name) is not None
        )

    def form(self, product: LinearSpec) -> PackedForm | None:
        """The form of a linear layer; None where it is held as a plain weight."""
        if product.role == "router" or (product.role == "head" and not self._has_head):
            return None
        if any(self._is_plain(name) for name in product.names):
            return None  # where one output is plain, all that are multiplied as one are held so
        inputs = product.inputs.size
        match self.quant_method:
            case "gptq":
                group = self.group_size or -1
                ordered = bool(self.desc_act) and not self.static_groups and 0 < group < inputs
                return _form(self.bits or 4, inputs, group, has_zeros=self.sym is not True, reordered=ordered)
            case "awq":
                group = self.group_size or self.q_group_size or 128
                return _form(4, inputs, group, has_zeros=self.zero_point is not False)
            case "compressed-tensors":
                scheme = self._scheme(product)
                if scheme is None:
                    return None
                group = scheme.group_size or -1 if scheme.resolved_strategy == "group" else -1
                ordered = scheme.actorder in ("group", True) and 0 < group < inputs
                return _form(scheme.num_bits, inputs, group, has_zeros=not scheme.symmetric, reordered=ordered)
            case _:  # widened
                return None

    @property
    def _has_head(self) -> bool:
        return self.quant_method == "compressed-tensors" or bool(self.lm_head)

    def _scheme(self, product: LinearSpec) -> StoredWeights | None:
        """The scheme whose targets name the layer, before one for its class."""
        name = product.names[0]
        for targets, expression, weights in self._schemes:
            if name in targets or (expression is not None and expression.match(name)):
                return weights
        return next((weights for targets, _, weights in self._schemes if "Linear" in targets), None)


def _any_of(expressions: Sequence[str]) -> Any:
    """One expression that matches what any of these does, from a name's beginning; None: there are none. A config.json
    may come from a client, so they are matched in linear time. Raises CheckpointError for what that cannot do."""
    if not expressions:
        return None
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MAX_EXPRESSION_BYTES
    try:
        return re2.compile("|".join(f"(?:{each})" for each in expressions), options)
    except re2.error as error:
        reason = error.args[0] if error.args else "unknown"
        shown = reason.decode() if isinstance(reason, bytes) else reason
        raise CheckpointError(
            f"config.json: quantization_config names layers by an expression that is not read here ({shown}): write "
            "their names in full"
        ) from None


def _form(bits: int, inputs: int, group: int, *, has_zeros: bool, reordered: bool = False) -> PackedForm | None:
    """The kernels' form of whole numbers of so many bits with scales; None: they have none."""
    if group <= 0 or group >= inputs:
        if bits == 8 and not has_zeros:
            return PackedForm(format="int8")
        group = -(-inputs // _WHOLE_ROW_STEP) * _WHOLE_ROW_STEP
    if bits != 4 or group % _GROUP_STEP:
        return None
    return PackedForm(format="int4", group=group, has_zeros=has_zeros, reordered=reordered)
