"""What a real engine process caches, as gateway processes hear of it."""

from __future__ import annotations

import os
import signal

import pytest

from block_watcher import SetWatcher
from conditions import collect, until
from kvarn.replica.client.protocol import ReplicaState
from kvarn.wire.block_names import PrefixScope, block_hashes


def cached(*sequences: list[int]) -> set[bytes]:
    """Names of the full blocks of these sequences."""
    full = [tokens[: len(tokens) // 16 * 16] for tokens in sequences]
    return {name[:8] for tokens in full for name in block_hashes(tokens, PrefixScope())}


@pytest.mark.thorough
async def test_processes_hear_of_all_blocks_whenever_they_come(make_replica, submit, attach):
    main = make_replica(num_blocks=12)
    await main.wait_until_ready()
    first, second = SetWatcher(), SetWatcher()
    main.watch_blocks(first)
    await collect(main, submit("a", list(range(40)), max_tokens=25))
    computed = list(range(64))  # the engine counts on; the last token of an answer is never computed
    await until(lambda: first.names == cached(computed))

    other = attach(main, 1)
    other.watch_blocks(second)
    await until(lambda: second.names == first.names)
    await collect(other, submit("b", list(range(1000, 1170)), max_tokens=2))
    # 12 blocks, of which the second request took 11: one of the first is left
    await until(lambda: first.names == second.names == cached(list(range(16)), list(range(1000, 1160))))

    main.watch_blocks(None)
    await collect(other, submit("c", list(range(500, 520)), max_tokens=2))
    await until(lambda: second.names is not None and cached(list(range(500, 516))) <= second.names)
    assert first.names is not None and not cached(list(range(500, 516))) & first.names


async def test_nothing_is_known_of_an_engine_that_died_until_the_next_one_tells(make_replica, submit):
    replica = make_replica()
    await replica.wait_until_ready()
    watcher = SetWatcher()
    replica.watch_blocks(watcher)
    await collect(replica, submit("a", list(range(40))))
    await until(lambda: bool(watcher.names))
    os.kill(replica.pid, signal.SIGKILL)
    await until(lambda: watcher.names is None)
    await until(lambda: replica.state is ReplicaState.READY)
    await until(lambda: watcher.names == set())
