"""The products of a layer's MLP, dense or a mixture of experts."""

from __future__ import annotations

from dataclasses import dataclass

from kvarn.specs.families.family import LayerNames
from kvarn.specs.place import Place, Shard
from kvarn.specs.products import Interleaved, LinearSpec, Role
from kvarn.specs.spec import DecoderSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpProducts:
    """A dense MLP, or one expert."""

    gate_up: LinearSpec
    down: LinearSpec

    @staticmethod
    def of(
        prefix: str, size: int, spec: DecoderSpec, names: LayerNames, place: Place, role: Role = "layer"
    ) -> MlpProducts:
        """An MLP of `size` inner features whose tensors' names begin with `prefix`, this rank's part of it."""
        hidden = Shard.whole(spec.hidden_size)
        inner = _expert_features(size, place) if role == "expert" else place.share(size, "intermediate features")
        return MlpProducts(
            gate_up=LinearSpec(
                names=tuple(f"{prefix}.{name}" for name in names.gate_up),
                outputs=(inner, inner),
                inputs=hidden,
                bias=spec.mlp_bias,
                activation=spec.activation,
                role=role,
            ),
            down=LinearSpec(
                names=(f"{prefix}.{names.down}",), outputs=(hidden,), inputs=inner, bias=spec.mlp_bias, role=role
            ),
        )

    @staticmethod
    def of_stack(name: str, expert: int, spec: DecoderSpec, place: Place) -> MlpProducts:
        """One expert of tensors that hold all of them, with biases, and gate and up in turn."""
        hidden, inner = Shard.whole(spec.hidden_size), _expert_features(spec.expert_size, place)
        return MlpProducts(
            gate_up=LinearSpec(
                names=(f"{name}.gate_up_proj",),
                outputs=(inner, inner),
                inputs=hidden,
                bias=True,
                activation=None if spec.swiglu else spec.activation,
                interleaved=(Interleaved(run=2 * inner.size, first=0, count=2 * inner.size),),
                expert=expert,
                role="expert",
            ),
            down=LinearSpec(
                names=(f"{name}.down_proj",), outputs=(hidden,), inputs=inner, bias=True, expert=expert, role="expert"
            ),
        )


def _expert_features(size: int, place: Place) -> Shard:
    return place.undivided(size) if place.expert_parallel else place.share(size, "intermediate features")


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeProducts:
    router: LinearSpec
    shared: MlpProducts | None
    shared_gate: LinearSpec | None

    @staticmethod
    def of(prefix: str, spec: DecoderSpec, names: LayerNames, place: Place) -> MoeProducts:
        def gate(name: str, outputs: int, bias: bool = False) -> LinearSpec:
            shard, hidden = Shard.whole(outputs), Shard.whole(spec.hidden_size)
            return LinearSpec(names=(prefix + name,), outputs=(shard,), inputs=hidden, bias=bias, role="router")

        size = spec.shared_expert_size
        return MoeProducts(
            router=gate(names.router, spec.num_experts, spec.router.bias),
            shared=MlpProducts.of(prefix + names.shared_expert, size, spec, names, place) if size else None,
            shared_gate=gate(names.shared_expert_gate, 1) if size and names.shared_expert_gate else None,
        )


def expert_products(prefix: str, expert: int, spec: DecoderSpec, names: LayerNames, place: Place) -> MlpProducts:
    """One expert of the layer whose tensors' names begin with `prefix`, this rank's part of it."""
    name = prefix + names.experts
    if spec.stacked_experts:
        return MlpProducts.of_stack(name, expert, spec, place)
    return MlpProducts.of(f"{name}.{expert}", spec.expert_size, spec, names, place, "expert")
