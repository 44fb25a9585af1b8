"""Blocks that several processes keep beyond their KV caches, in memory and on disk; and an EAGLE head beside them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("kvarn.kernels.cpu._native", reason="torch's own products do not promise the order of their sums")

import kvarn
from kvarn.engine.plan import BlockTransfer
from kvarn.worker.ranks.blocks import BlockSlots, SlotMemory, anonymous_file, block_parts, map_memory, slot_bytes
from kvarn.worker.ranks.collectives import RankLayout
from profiles import examples
from rank_services import build, requests, run
from tiny_checkpoints import make_decoder

DEMO = Path(kvarn.__file__).parent / "assets" / "kvarn-demo"


def check_tiers(directory: Path, tiers: dict[str, Any], vocabulary: range, sizes: dict[str, Any]) -> None:
    """Answers from a little memory, from the tiers, and after a restart from disk."""
    options = {"max_context_length": 256, "engine": {"token_budget": 180, "max_num_seqs": 4}}
    messages = requests(vocabulary, 12, with_grammars=False, longest=190)
    alone = build(directory, tensor_parallel_invariant=True, **options)
    expected = run(alone, messages)
    alone.shutdown()
    stats = []
    for _ in range(2):
        service = build(directory, kv_tiers=tiers, **options, **sizes)
        for _ in range(2):
            answers = run(service, messages)
            assert answers.keys() == expected.keys()
            for key, answer in answers.items():
                assert answer == expected[key], key
        stats.append(service.stats())
        service.shutdown()
    assert stats[0].evictions_total > 0
    assert stats[0].lookups.hits_total + stats[1].lookups.hits_total > 0
    assert stats[1].kv_tiers["disk"].loaded_bytes_total > 0
    assert set(stats[1].kv_tiers["disk"].dropped_total) <= {"slow"}, "no block was damaged"


def test_blocks_of_ranks_that_share_layers_and_prompts(tmp_path: Path) -> None:
    tiers = {"host_gib": 0.002, "disk_gib": 0.1, "directory": str(tmp_path)}
    sizes = {"tensor_parallel_size": 2, "prefill_context_parallel_size": 2, "kv_cache_gib": 0.0022}
    check_tiers(DEMO, tiers, range(200, 4000), sizes)


@pytest.mark.thorough
def test_latent_rows_of_stages(tmp_path: Path) -> None:
    """Ranks that share layers have the same rows: one stores them, all load them."""
    make_decoder("deepseek-v3", tmp_path / "model")
    tiers = {"host_gib": 0.0001, "disk_gib": 0.1, "directory": str(tmp_path / "kv")}
    sizes = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "expert_parallel": True, "kv_cache_gib": 0.00025}
    check_tiers(tmp_path / "model", tiers, range(3, 199), sizes)


@pytest.mark.thorough
def test_an_eagle_head_follows_ranks_that_share_layers() -> None:
    """Rank 0 has the head; blocks come back without what it left there."""
    messages = requests(range(200, 4000), 12, with_grammars=False)
    alone = build(DEMO, tensor_parallel_invariant=True)
    expected = run(alone, messages)
    alone.shutdown()
    head = {"method": "eagle3", "model": "kvarn-demo-eagle3", "adaptive": False}
    service = build(DEMO, tensor_parallel_size=2, speculation=head, kv_tiers={"host_gib": 0.05}, kv_cache_gib=0.0006)
    for _ in range(2):
        assert run(service, messages) == expected
    assert service.stats().speculation.accepted_tokens_total > 0
    service.shutdown()


layouts = st.builds(
    RankLayout,
    tensor_parallel_size=st.sampled_from([1, 2, 4, 8]),
    pipeline_parallel_size=st.integers(1, 3),
    prefill_context_parallel_size=st.integers(1, 3),
)


@settings(max_examples=examples(60), deadline=None)
@given(layouts, st.sampled_from([1, 2, 4, 8]), st.integers(1, 40))
def test_a_block_comes_back_to_each_rank_as_it_was(layout: RankLayout, kv_heads: int, head_bytes: int) -> None:
    copies = max(1, layout.tensor_parallel_size // kv_heads)
    own_heads = max(1, kv_heads // layout.tensor_parallel_size)
    sizes = [own_heads * head_bytes * (1 + layout.stage(rank)) for rank in range(layout.world_size)]
    parts = block_parts(layout, copies, sizes)
    whole = sum(kv_heads * head_bytes * (1 + stage) for stage in range(layout.pipeline_parallel_size))
    assert slot_bytes(parts) == whole, "nothing is kept twice"

    def contents(rank: int) -> bytes:
        """What a rank's cache holds of the block: the same where the heads are the same."""
        heads = layout.shard(rank) // copies
        return bytes((7 * layout.stage(rank) + 3 * heads + i) % 251 for i in range(sizes[rank]))

    file = anonymous_file()
    os.ftruncate(file, 3 * whole)
    memory = map_memory(file, 3 * whole)
    os.close(file)
    ranks = [SlotMemory(memory, whole, part) for part in parts]
    transfer = [BlockTransfer(5, b"name")]
    for number, rank in enumerate(ranks):
        rank.slots = BlockSlots([1], [])
        rank.store(transfer, [[memoryview(contents(number))]])
    for number, rank in enumerate(ranks):
        loaded = bytearray(sizes[number])
        rank.slots = BlockSlots([], [1])
        rank.load(transfer, [[memoryview(loaded)]])
        assert loaded == contents(number)
    assert bytes(memory[:whole]) == bytes(memory[2 * whole :]) == bytes(whole), "other slots are left alone"
