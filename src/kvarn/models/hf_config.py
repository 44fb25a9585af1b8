"""Hugging Face's config.json, in its old and new spellings.

transformers 5 writes `rope_parameters`, `layer_types` and `dtype`; checkpoints on the hub mostly have `rope_theta`,
`rope_scaling`, family-specific window fields and `torch_dtype`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvarn.kernels.activation import Activation
from kvarn.models.errors import CheckpointError, UnsupportedModelError
from kvarn.models.rope import rope_spec
from kvarn.models.spec import RopeSpec

_ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}


class HfConfig:
    """Typed access to one config.json."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self._raw = raw

    def get(self, key: str, default: Any = None) -> Any:
        """The value as it stands; `default` where it is absent or null."""
        value = self._raw.get(key)
        return default if value is None else value

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number. Raises CheckpointError where there is none and no default."""
        return int(self.number(key, default))

    def number(self, key: str, default: float | None = None) -> float:
        """A number. Raises CheckpointError where there is none and no default."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise CheckpointError(f"config.json needs a number in `{key}`, it has {value!r}")
        return value

    def optional_number(self, key: str) -> float | None:
        """A number, or None where it is absent or null."""
        return None if self.get(key) is None else self.number(key)

    def activation(self) -> Activation:
        """The MLP's activation (Gemma's `hidden_activation` overrides its historical `hidden_act`)."""
        name = self.get("hidden_activation") or self.get("hidden_act", "silu")
        if name not in _ACTIVATIONS:
            raise UnsupportedModelError(
                f"activation {name!r} is not supported; there are: {', '.join(sorted(_ACTIVATIONS))}"
            )
        return _ACTIVATIONS[name]

    def windows(self, rule: str, num_layers: int) -> list[int | None]:
        """The sliding window of each layer, None where a layer sees everything.

        Without `layer_types`, `rule` says which layers slide: `all` of them; `qwen`: those from `max_window_layers`
        on, and only if `use_sliding_window`; `alternating`: the even ones (Gemma 2); `pattern`: all but each
        `sliding_window_pattern`-th (Gemma 3).
        """
        size = self.get("sliding_window")
        if not size or (rule == "qwen" and not self.get("use_sliding_window", False)):
            return [None] * num_layers
        if (types := self.get("layer_types")) is not None:
            return [int(size) if kind == "sliding_attention" else None for kind in types]
        pattern = self.integer("sliding_window_pattern", self.integer("_sliding_window_pattern", 6))
        first_sliding = self.integer("max_window_layers", num_layers) if rule == "qwen" else 0

        def slides(layer: int) -> bool:
            match rule:
                case "alternating":
                    return layer % 2 == 0
                case "pattern":
                    return (layer + 1) % pattern != 0
                case _:
                    return layer >= first_sliding

        return [int(size) if slides(layer) else None for layer in range(num_layers)]

    def ropes(self, head_dim: int, max_context_length: int) -> dict[str, RopeSpec]:
        """The rotary embedding of each layer type: `full_attention` and `sliding_attention`."""
        common = {
            "partial_rotary_factor": self.get("partial_rotary_factor"),
            "original_max_position_embeddings": self.get(
                "original_max_position_embeddings", self.get("max_position_embeddings")
            ),
            "trained_context_length": self.get("max_position_embeddings"),
        }

        def spec(parameters: Mapping[str, Any]) -> RopeSpec:
            given = {key: value for key, value in parameters.items() if value is not None}
            return rope_spec({**common, **given}, head_dim, max_context_length)

        return {kind: spec(parameters) for kind, parameters in self._rope_parameters().items()}

    def _rope_parameters(self) -> dict[str, Mapping[str, Any]]:
        parameters = self.get("rope_parameters")
        if parameters is not None and "full_attention" in parameters:
            full = parameters["full_attention"]
            return {"full_attention": full, "sliding_attention": parameters.get("sliding_attention", full)}
        if parameters is None:
            scaling = dict(self.get("rope_scaling", {}))
            scaling.setdefault("rope_type", scaling.pop("type", "default"))
            parameters = {**scaling, "rope_theta": self.get("rope_theta", 10_000.0)}
        local_theta = self.get("rope_local_base_freq")
        sliding = parameters if local_theta is None else {"rope_type": "default", "rope_theta": local_theta}
        return {"full_attention": parameters, "sliding_attention": sliding}
