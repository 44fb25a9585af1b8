"""Requests with an adapter whose mask is still being made: the adapter stays until the last of them is over."""

from __future__ import annotations

from itertools import count

import pytest

from kvarn.config.schema import EngineConfig
from kvarn.engine.core import EngineCore, EngineParts
from kvarn.engine.plan import StepPlan
from kvarn.wire.messages import Grammar, Submit
from kvarn.wire.sampling import SamplingParams
from kvarn.worker.modelled import ModelledExecutor
from kvarn.worker.proposers.ngram import NgramProposer


class Store:
    """One adapter, that is there one step after its load was planned."""

    def __init__(self) -> None:
        self.held = {"A"}
        self.loaded: list[str] = []

    def num_blocks(self, adapter: str) -> int:
        assert adapter in self.held
        return 2

    def drain_loaded(self) -> list[str]:
        loaded, self.loaded = self.loaded, []
        return loaded

    def forget(self, adapter: str) -> None:
        self.held.remove(adapter)


class Executor(ModelledExecutor):
    """Tells the store which adapters were loaded."""

    def __init__(self, store: Store) -> None:
        super().__init__(num_blocks=64, max_context_length=512)
        self._store = store

    def submit(self, plan: StepPlan) -> None:
        self._store.loaded += [load.adapter for load in plan.adapter_loads]
        super().submit(plan)


class Mask:
    """Allows everything, once it is ready."""

    ready = False
    problem: str | None = None

    def forced(self, index: int, output_token_ids: list[int]) -> list[int]:
        return []

    def pack(self, index: int, output_token_ids: list[int], proposals: list[int]) -> list[bytes]:
        return [b"\xff" * 32] * (len(proposals) + 1)


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def mask() -> Mask:
    return Mask()


@pytest.fixture
def proposer() -> NgramProposer:
    return NgramProposer()


@pytest.fixture
def engine(store: Store, mask: Mask, proposer: NgramProposer) -> EngineCore:
    ticks = count()
    return EngineCore(
        EngineParts(
            Executor(store),
            EngineConfig(),
            masks=lambda message: mask if message.grammar else None,
            adapters=store,
            proposer=proposer,
        ),
        lambda: next(ticks) * 0.01,
    )


def request(request_id: str, *, grammar: bool, **fields: str) -> Submit:
    return Submit(
        request_id=request_id,
        prompt_token_ids=[1, 2, 3],
        sampling=SamplingParams(seed=1, max_tokens=5),
        grammar=Grammar(text="x") if grammar else None,
        **{"adapter": "A"} | fields,
    )


def run(engine: EngineCore) -> set[str]:
    """Ids of the requests that end."""
    ended: set[str] = set()
    for _ in range(20):
        ended |= {delta.request_id for delta in engine.step().deltas if delta.finish_reason}
        engine.check_integrity()
    return ended


def test_an_adapter_that_is_unloaded_while_a_mask_is_made_serves_that_request(
    engine: EngineCore, store: Store, mask: Mask
) -> None:
    engine.add(request("masked", grammar=True))
    engine.check_integrity()
    engine.retire_adapter("A")
    mask.ready = True
    assert run(engine) == {"masked"}
    assert not store.held, "forgotten with its last request"


@pytest.mark.parametrize("how", ["abort", "problem"])
def test_a_request_that_ends_before_its_mask_was_made_takes_no_count_with_it(
    engine: EngineCore, store: Store, mask: Mask, how: str
) -> None:
    engine.add(request("masked", grammar=True))
    if how == "abort":
        engine.abort("masked")
    else:
        mask.problem, mask.ready = "it cannot be made", True
        assert [refused.request_id for refused in engine.step().refused] == ["masked"]
    engine.check_integrity()
    engine.add(request("plain", grammar=False))
    engine.retire_adapter("A")
    assert run(engine) == {"plain"}
    assert not store.held


def test_nothing_is_guessed_from_answers_of_a_deleted_tenant(engine: EngineCore, proposer: NgramProposer) -> None:
    for tenant in ("kept", "deleted"):
        engine.add(request(tenant, grammar=False, tenant=tenant))
    run(engine)
    both = proposer.nbytes
    engine.forget_tenant("deleted")
    assert 0 < proposer.nbytes < both
    engine.add(request("late", grammar=False, tenant="deleted"))
    run(engine)
    assert proposer.nbytes < both
