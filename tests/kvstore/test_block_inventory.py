"""What the tiers say they hold, against what can be found there."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from block_watcher import names_in
from kv_blocks import fetch, name_of, open_disk, open_store, store
from kvarn.engine.memory.block_inventory import BlockInventory

NUMBERS = range(120)


@pytest.mark.parametrize("seed", range(4))
def test_names_that_are_told_are_those_that_can_be_found(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    tiers = open_store(open_disk(tmp_path, blocks=40, tenant_blocks=30), blocks=8)
    store(tiers, range(5), "tenant0")
    held = BlockInventory()
    tiers.report_to(held)
    view = names_in(held.snapshot()[2])
    assert len(view) == 5
    for _ in range(60):
        action = rng.random()
        if action < 0.7:
            number = rng.choice(NUMBERS)
            store(tiers, [number], f"tenant{number % 3}")
        elif action < 0.95:
            number = rng.choice(NUMBERS)
            fetch(tiers, [number], f"tenant{number % 3}")
        elif action < 0.97:
            tiers.forget(f"tenant{rng.randrange(3)}")
        else:
            segment = rng.choice(sorted(tmp_path.rglob("*.segment")) or [None])
            if segment is not None:
                segment.write_bytes(segment.read_bytes()[: rng.randrange(2000)])
        assert tiers.flush(30)
        stored, removed = map(names_in, held.take())
        assert not stored & view and removed <= view
        view = (view | stored) - removed
        assert view == {name_of(number)[:8] for number in NUMBERS if tiers.holds(name_of(number))}
    tiers.report_to(None)
    store(tiers, [500])
    assert not held
    tiers.close()
