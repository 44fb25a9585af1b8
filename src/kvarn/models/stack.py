"""The layers of a decoder that one rank holds, from residual stream to residual stream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property

import torch

from kvarn.kernels.batch import KVCache, PagedBatch
from kvarn.kernels.decoder import DecoderLayers, DecoderParts
from kvarn.models.attention import Attention, LayerStep
from kvarn.models.attention.base import LayerGroups
from kvarn.models.layer import load_layer
from kvarn.models.loading.weights import WeightLoader
from kvarn.shapes import KvDtype
from kvarn.shapes.attention import AttentionKind
from kvarn.specs.families.table import FAMILIES
from kvarn.specs.spec import DecoderSpec


class LayerStack:
    """Consecutive layers. `kv_dtype`: type of their keys and values."""

    def __init__(self, spec: DecoderSpec, loader: WeightLoader, kv_dtype: KvDtype) -> None:
        held, names = loader.parallel.stage.layers(spec.num_layers), FAMILIES[spec.architecture].names
        self.first_layer = held.start
        self.layers = [load_layer(index, spec, names, loader) for index in held]
        specs = [spec.layers[index] for index in held]
        self.groups = LayerGroups[AttentionKind]([(each.rope, each.attention) for each in specs], loader.device)
        self._spec = spec
        self._kernels = loader.kernels
        self._kv_dtype = kv_dtype
        self._of_group = dict(zip(self.groups.of_layer, [layer.attention for layer in self.layers], strict=True))
        counts = Counter[bool]()
        self._places: list[int] = []
        """The place of each layer in the cache, where those with blocks and those with states are counted apart."""
        self._first_of: dict[bool, Attention] = {}
        for layer, has_state in zip(self.layers, (bool(each.attention.state_bytes) for each in specs), strict=True):
            self._places.append(counts[has_state])
            counts[has_state] += 1
            self._first_of.setdefault(has_state, layer.attention)
        self._counts = counts

    @property
    def nbytes(self) -> int:
        """Bytes that the products of all layers take as they are held."""
        return sum(layer.nbytes for layer in self.layers)

    def new_cache(self, num_blocks: int, num_states: int = 0) -> KVCache:
        """An empty cache for this rank's heads."""
        parts = [
            attention.new_cache(self._counts[has_state], num_blocks, num_states, self._kv_dtype)
            for has_state, attention in self._first_of.items()
        ]
        return KVCache(
            keys=tuple(keys for part in parts for keys in part.keys),
            values=tuple(values for part in parts for values in part.values),
            recurrent_states=next((part.recurrent_states for part in parts if part.recurrent_states), None),
        )

    def new_scratch_cache(self, num_blocks: int) -> KVCache:
        """An empty cache in which each layer overwrites the keys and values of the one before. Only for attention by
        blocks, and sequences that are computed in one step."""
        (attention,) = self._first_of.values()
        one = attention.new_cache(1, num_blocks, 0, self._kv_dtype)
        return KVCache(one.keys * len(self.layers), one.values * len(self.layers))

    @cached_property
    def joined(self) -> DecoderLayers | None:
        """All layers in one call; None where the kernels cannot compute them so."""
        parts = [layer.parts(group) for layer, group in zip(self.layers, self.groups.of_layer, strict=True)]
        complete, plain = [each for each in parts if each is not None], self.layers[0].attention.plain
        if plain is None or len(complete) < len(parts):
            return None
        spec = self._spec
        return self._kernels.operations.decoder_layers(
            DecoderParts(plain.heads, self._kv_dtype, complete, spec.attention_scale, spec.attention_softcap)
        )

    def steps(self, batch: PagedBatch, cache: KVCache) -> list[LayerStep]:
        """The layers' shared plans and rotations of a step, by group."""
        return [
            LayerStep(
                plan=self._of_group[group].plan(batch),
                rotation=self.groups.rotation(group, batch.positions),
                adapters=batch.adapters,
                cache=cache,
                slots=batch.slot_mapping,
            )
            for group in range(len(self.groups))
        ]

    def run(
        self, hidden: torch.Tensor, batch: PagedBatch, steps: Sequence[LayerStep], first: int, last: int
    ) -> torch.Tensor:
        """The residual stream [T, hidden] after the layers from `first` to before `last` of this rank, in place."""
        if self.joined is not None and batch.exchange is None:
            plans, rotations = [step.plan for step in steps], [step.rotation for step in steps]
            self.joined.run(hidden, steps[0].cache, plans, rotations, batch.adapters, first, last)
            return hidden
        for index in range(first, last):
            step = steps[self.groups.of_layer[index]]
            hidden = self.layers[index].forward(hidden, self._places[index], step)
        return hidden
