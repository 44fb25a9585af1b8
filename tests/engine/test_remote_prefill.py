"""Which prompts another engine is asked to compute, and what becomes of them when it does not."""

from __future__ import annotations

import pytest

from engine_world import World
from kv_connectors import DictConnector
from kvarn.config.disaggregation import DisaggregationConfig
from kvarn.costs.step_times import StepTimes
from kvarn.engine.memory.remote_prefill import PeerLoad
from kvarn.engine.plan import StepPlan
from kvarn.engine.request import Sequence
from kvarn.engine.step_time import StepTimeModel

LONG = [i * i % 50 for i in range(500)]


def seconds(plan: StepPlan) -> float:
    return 0.001 + 0.001 * plan.num_tokens


def step_time() -> StepTimeModel:
    """Knows how long steps take: `seconds`."""
    return StepTimeModel.knowing(StepTimes(fixed_s=0.001, prefill_token_s=0.001, decode_row_s=0.001))


class Peer:
    """Another engine with the same connector: its blocks are there after some looks at them."""

    def __init__(self, connector: DictConnector, token_s: float | None = 0.0005) -> None:
        self.connector = connector
        self.token_s = token_s
        self.asked: list[int] = []
        self.waiting_tokens = 0

    def load(self) -> PeerLoad | None:
        return None if self.token_s is None else PeerLoad(self.waiting_tokens, self.token_s)

    def prefill(self, sequence: Sequence, names: list[bytes], scope: bytes):
        self.asked.append(len(names))
        other = World(connector=self.connector, num_blocks=64)
        other.submit("prompt", sequence.request.prompt, max_tokens=0)
        other.run()
        return self.connector.fetch(sequence.fetch.block_names, "", scope)


def pair(token_s: float | None = 0.0005, **chosen: object) -> tuple[World, Peer]:
    connector = DictConnector(far=True)
    peer = Peer(connector, token_s)
    config = DisaggregationConfig(**{"min_tokens": 64, **chosen})
    times = {"seconds": seconds, "step_time": step_time()}
    world = World(num_blocks=80, connector=connector, prefill_peer=peer, disaggregation=config, **times)
    return world, peer


def answer_beside_a_decode(world: World) -> None:
    """A long prompt comes while an answer is written."""
    world.submit("running", 10, max_tokens=60)
    for _ in range(5):
        world.step()
    world.submit("long", LONG, max_tokens=4)
    world.run()
    world.assert_all_answered()


def test_a_long_prompt_beside_running_answers_is_computed_elsewhere() -> None:
    world, peer = pair()
    answer_beside_a_decode(world)
    assert peer.asked == [499 // 16]
    assert world.cached_tokens("long") == 496
    assert max(plan.num_tokens for plan in world.executor.plans) < 60
    assert world.engine.stats().lookups.remote_prefills_total == 1


@pytest.mark.parametrize(
    ("token_s", "chosen"),
    [(None, {}), (0.1, {}), (0.0005, {"min_tokens": 512})],
    ids=["it cannot be reached", "it would take longer", "the prompt is short"],
)
def test_a_prompt_stays_here_where(token_s: float | None, chosen: dict[str, object]) -> None:
    world, peer = pair(token_s, **chosen)
    answer_beside_a_decode(world)
    assert peer.asked == []
    assert world.cached_tokens("long") == 0


def test_a_prompt_behind_others_is_computed_elsewhere_and_the_first_here() -> None:
    world, peer = pair()
    for name in ("first", "second"):
        world.submit(name, [*LONG[::-1], 3] if name == "first" else LONG, max_tokens=4)
    world.run()
    assert len(peer.asked) == 1
    assert (world.cached_tokens("first"), world.cached_tokens("second")) == (0, 496)


def test_a_peer_that_was_not_measured_is_not_asked_for_more_than_this_engine_would_compute_meanwhile() -> None:
    world, peer = pair(token_s=0.0)
    peer.waiting_tokens = 2000
    answer_beside_a_decode(world)
    assert peer.asked == []


def test_without_anything_else_to_do_an_engine_computes_its_prompt() -> None:
    world, peer = pair()
    world.submit("long", LONG, max_tokens=4)
    world.run()
    assert peer.asked == []


def test_always_means_always() -> None:
    world, peer = pair(mode="always")
    world.submit("long", LONG, max_tokens=4)
    world.run()
    world.assert_answered("long")
    assert len(peer.asked) == 1


def test_what_is_cached_here_is_not_asked_for() -> None:
    world, peer = pair(mode="always")
    for name in ("first", "second"):
        world.submit(name, LONG, max_tokens=4)
        world.run()
    world.submit("third", LONG[:320] + [7] * 200, max_tokens=4)
    world.run()
    assert peer.asked == [31, 32 - 20]
    world.assert_answered("third")


def test_a_peer_that_sends_nothing_is_given_up_and_the_prompt_computed_here() -> None:
    world, peer = pair()
    peer.connector.stuck = True
    answer_beside_a_decode(world)
    assert len(peer.asked) == 1
    assert world.cached_tokens("long") == 0
    assert world.engine.stats().lookups.given_up_total == 1
