"""Numbering of ranks."""

from kvarn.worker.ranks.collectives import RankLayout


def test_every_rank_has_its_place() -> None:
    layout = RankLayout(tensor_parallel_size=2, pipeline_parallel_size=2, prefill_context_parallel_size=3)
    assert layout.world_size == 12
    places = {(layout.stage(rank), layout.context(rank), layout.shard(rank)) for rank in range(12)}
    assert len(places) == 12
    assert (layout.stage(0), layout.context(0), layout.shard(0)) == (1, 0, 0)
    for rank in range(12):
        for peer in layout.peers(rank):
            assert (layout.stage(peer), layout.context(peer)) == (layout.stage(rank), layout.context(rank))
        assert [layout.context(peer) for peer in layout.context_peers(rank)] == [0, 1, 2]
        for peer in layout.context_peers(rank):
            assert (layout.stage(peer), layout.shard(peer)) == (layout.stage(rank), layout.shard(rank))
