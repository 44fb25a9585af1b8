"""Small random models of every family, and a way to run ours over a paged cache."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kvarn.kernels.adapters import AdapterMemory, PackedAdapter
from kvarn.kernels.batch import KVCache, PagedBatch, StateBatch
from kvarn.models import Decoder
from tiny_checkpoints import DECODERS, make_decoder

BLOCK = 16


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


@dataclass
class PagedRunner:
    """Sequences over one paged cache, with a scrambled order of blocks and poison wherever nothing was written."""

    model: Decoder
    num_blocks: int = 96
    cache: KVCache = field(init=False)
    tables: dict[str, list[int]] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)
    adapters: AdapterMemory | None = None
    states: dict[str, int] = field(default_factory=dict)
    """Places of recurrent states: of each sequence, and of copies at the ends of its blocks."""

    def __post_init__(self) -> None:
        self.cache = self.model.new_kv_cache(self.num_blocks, 64)
        recurrent = self.cache.recurrent_states
        own = () if recurrent is None else (*recurrent.matrices, *recurrent.inputs)
        for tensor in (*self.cache.keys, *self.cache.values, *own):
            tensor.view(torch.uint8).fill_(255)  # NaN in every float type
        order = torch.randperm(self.num_blocks - 1, generator=torch.Generator().manual_seed(3)) + 1
        self._free = order.tolist()  # block 0 stays poisoned: unused entries of a block table name it

    def share_prefix(self, name: str, source: str, num_blocks: int) -> None:
        """Begin a sequence with the first blocks of another."""
        self.tables[name] = self.tables[source][:num_blocks]
        self.lengths[name] = num_blocks * BLOCK
        if self.cache.recurrent_states is not None:
            self.cache.recurrent_states.copy(self.states[f"{source} {num_blocks * BLOCK}"], self._place(name))

    def add_adapters(self, *adapters: PackedAdapter) -> None:
        """Spread them over the cache, from its last blocks on."""
        self.adapters = self.model.new_adapter_memory(self.cache)
        for index, adapter in enumerate(adapters):
            blocks = [self._free.pop(0) for _ in range(self.adapters.num_blocks(adapter))]
            self.adapters.write(adapter, blocks)
            self.adapters.place(index, adapter, blocks)

    def _place(self, name: str) -> int:
        return self.states.setdefault(name, len(self.states))

    def _states(self, rows: dict[str, list[int]]) -> StateBatch | None:
        """Recurrent states of rows whose tokens `lengths` counts already; a copy is kept at the end of each block."""
        if self.cache.recurrent_states is None:
            return None
        for name, tokens in rows.items():
            if len(tokens) == self.lengths[name]:
                self.cache.recurrent_states.clear(self._place(name))
        saves = [
            self._place(f"{name} {end}") if end % BLOCK == 0 else -1
            for name, tokens in rows.items()
            for end in range(self.lengths[name] - len(tokens) + 1, self.lengths[name] + 1)
        ]
        places = torch.tensor([self._place(name) for name in rows])
        return StateBatch(places, torch.tensor(saves))

    def step(self, rows: dict[str, list[int]], adapters: dict[str, int] | None = None) -> dict[str, torch.Tensor]:
        """Append tokens to sequences (of these adapters) in one batch; the logits [tokens, vocab] of each."""
        counts, positions = [len(tokens) for tokens in rows.values()], []
        for name, tokens in rows.items():
            table, begin = self.tables.setdefault(name, []), self.lengths.setdefault(name, 0)
            self.lengths[name] = begin + len(tokens)
            while len(table) * BLOCK < self.lengths[name]:
                table.append(self._free.pop())
            positions.append(np.arange(begin, self.lengths[name]))
        width = max(len(self.tables[name]) for name in rows) + 2
        tables = np.array([self.tables[name] + [0] * (width - len(self.tables[name])) for name in rows], dtype=np.int32)
        batch = PagedBatch.of(np.concatenate(positions), np.cumsum([0, *counts]), tables, torch.device("cpu"))
        batch = replace(batch, recurrent_states=self._states(rows))
        if adapters is not None and self.adapters is not None:
            indices = np.repeat([adapters[name] for name in rows], counts)
            batch = replace(batch, adapters=self.adapters.batch(torch.from_numpy(indices)))
        token_ids = torch.tensor([token for tokens in rows.values() for token in tokens])
        logits = self.model.forward(token_ids, batch, self.cache, torch.arange(len(token_ids)))
        return dict(zip(rows, logits.split(counts), strict=True))


@pytest.fixture(scope="session")
def oracle_factory(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Any, Path]]:
    """Make (or find again) a random model: (transformers model, directory)."""
    made: dict[str, tuple[Any, Path]] = {}

    def make(name: str, **changes: Any) -> tuple[Any, Path]:
        key = f"{name}{sorted(changes.items())}"
        if key not in made:
            path = tmp_path_factory.mktemp(name)
            made[key] = (make_decoder(name, path, **changes), path)
        return made[key]

    return make


@pytest.fixture
def checkpoint(oracle_factory: Callable[..., tuple[Any, Path]], tmp_path: Path) -> Path:
    """A copy of a small Qwen3 that a test may damage."""
    _, path = oracle_factory("qwen3")
    return Path(shutil.copytree(path, tmp_path / "model"))


@pytest.fixture(params=list(DECODERS))
def family(request: pytest.FixtureRequest) -> str:
    """Each family in turn."""
    return str(request.param)


@pytest.fixture
def run_paged() -> type[PagedRunner]:
    """The paged runner's class."""
    return PagedRunner
