"""Adapters by name in an engine process: versions, requests that come before a load has ended, restarts."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kvarn.clock import SYSTEM_CLOCK
from kvarn.config.adapters import LoraConfig
from kvarn.config.engine import EngineConfig
from kvarn.engine.core import EngineParts
from kvarn.engine.plan import StepPlan
from kvarn.kernels.adapters import PackedAdapter
from kvarn.models.adapters import AdapterError, LoadedAdapter
from kvarn.observe.timeline import Phase, spent_by_phase
from kvarn.replica.server.adapters import AdapterHost
from kvarn.replica.server.generate import GenerateService
from kvarn.wire.messages import (
    AdapterChanged,
    AdapterInfo,
    Adapters,
    Join,
    LoadAdapter,
    ModelCard,
    Refused,
    StepOutput,
    Submit,
    UnloadAdapter,
)
from kvarn.wire.sampling import SamplingParams
from kvarn.worker.adapters import AdapterPool
from kvarn.worker.modelled import ModelledExecutor

CARD = ModelCard(
    kind="generate", architecture="A", dtype="d", vocab_size=100, max_context_length=4096, num_parameters=0
)
NUM_BLOCKS = 40


class Executor(ModelledExecutor):
    """Draws the number of the adapter's version, and takes a block of memory for each."""

    def __init__(self) -> None:
        super().__init__(next_token=lambda token, sequence: int(sequence.adapter or 0), num_blocks=NUM_BLOCKS)
        memory = SimpleNamespace(
            num_blocks=lambda packed: packed.nbytes // 64, write=lambda *_: None, place=lambda *_: None
        )
        self.adapters = AdapterPool(lambda: memory)

    def submit(self, plan: StepPlan) -> None:
        for adapter in plan.adapter_drops:
            self.adapters.drop(adapter)
        for load in plan.adapter_loads:
            self.adapters.begin(load)
        for new in plan.new_sequences:
            assert not new.adapter or new.adapter in self.adapters.indices
        super().submit(plan)

    def shutdown(self) -> None:
        self.adapters.close()


class Rig:
    """A service whose adapters' digests are what stands in `files`, by path."""

    def __init__(self, *, max_bytes: int = 10**6, **config: Any) -> None:
        self.files = {"one": "1", "two": "2", "three": "3"}
        self.lines = 2
        self.hold: Event | None = None
        self.late_s = 0.0
        executor = Executor()

        def host(engine: Any) -> AdapterHost:
            return AdapterHost(
                self.load,
                executor.adapters,
                engine,
                num_blocks=NUM_BLOCKS,
                max_bytes=max_bytes,
                config=LoraConfig(**config),
            )

        parts = EngineParts(executor, EngineConfig(), adapters=executor.adapters)
        self.service = GenerateService(parts, CARD, adapter_host=host, clock=lambda: SYSTEM_CLOCK.now() + self.late_s)
        self.pool = executor.adapters
        self.said: list[Any] = []
        self.tokens: dict[str, list[int]] = {}
        self.events: dict[str, list[int]] = {}

    def load(self, path: Path) -> LoadedAdapter:
        if self.hold is not None:
            self.hold.wait(10)
        if path.name not in self.files:
            raise AdapterError("there is nothing")
        return LoadedAdapter(
            self.files[path.name], 8, PackedAdapter(torch.zeros(self.lines, 64, dtype=torch.uint8), ())
        )

    def ask(self, request_id: str, adapter: str, tokens: int = 3) -> Refused | None:
        sampling = SamplingParams(seed=0, max_tokens=tokens)
        message = Submit(request_id=request_id, prompt_token_ids=[1], sampling=sampling, adapter=adapter)
        return self.service.accept(message)

    def begin(self, name: str, path: str, *, in_place: bool = False) -> None:
        info = AdapterInfo(name=name, path=path)
        assert (
            self.service.change_adapters(LoadAdapter(request_id=f"load {name}", adapter=info, in_place=in_place))
            is None
        )

    def unload(self, name: str) -> None:
        self.service.change_adapters(UnloadAdapter(request_id=f"unload {name}", name=name))

    def step(self) -> None:
        for message in self.service.step():
            if isinstance(message, StepOutput):
                for delta in message.deltas:
                    self.tokens.setdefault(delta.request_id, []).extend(delta.token_ids)
                    self.events.setdefault(delta.request_id, []).extend(delta.events or ())
            else:
                self.said.append(message)

    def run(self) -> list[Any]:
        """To the end of all work; what was said besides tokens."""
        while self.service.has_work():
            self.step()
        said, self.said = self.said, []
        return said

    def problems(self) -> dict[str, str]:
        return {message.request_id: message.problem for message in self.run() if isinstance(message, AdapterChanged)}


def names(message: Adapters | None) -> list[str]:
    assert message is not None
    return sorted(adapter.name for adapter in message.adapters)


def test_a_name_stands_for_what_was_loaded_last_and_running_requests_keep_their_version() -> None:
    rig = Rig()
    rig.begin("a", "one")
    told, answer = rig.run()
    assert (told.revision, names(told), answer) == (1, ["a"], AdapterChanged(request_id="load a"))
    rig.ask("first", "a", tokens=20)
    for _ in range(200):
        rig.step()
        if len(rig.tokens.get("first", [])) > 3:
            break
    rig.begin("a", "two")
    rig.begin("a", "two", in_place=True)
    while not any(isinstance(message, Adapters) for message in rig.said):
        rig.step()
    rig.ask("second", "a")
    answers = [message for message in rig.run() if isinstance(message, AdapterChanged)]
    assert [answer.code for answer in answers] == ["exists", ""]
    assert rig.tokens == {"first": [1] * 20, "second": [2] * 3}
    assert not rig.pool.has("1") and rig.pool.has("2"), "the old version is let go of with its last request"


def test_an_unloaded_adapter_finishes_what_has_begun_and_takes_nothing_new() -> None:
    rig = Rig()
    rig.begin("a", "one")
    rig.run()
    rig.ask("running", "a", tokens=9)
    rig.step()
    rig.unload("a")
    refused = rig.ask("late", "a")
    assert refused is not None and "adapter 'a' is not loaded" in refused.message
    assert rig.problems() == {"unload a": ""}
    assert rig.tokens == {"running": [1] * 9}
    assert not rig.pool.has("1")
    rig.unload("a")
    assert rig.problems() == {"unload a": "The lora adapter 'a' cannot be found."}


def test_two_names_of_the_same_weights_are_one_version() -> None:
    rig = Rig()
    rig.begin("a", "one")
    rig.begin("b", "one")
    rig.run()
    rig.unload("a")
    rig.run()
    rig.ask("r", "b")
    rig.run()
    assert rig.tokens == {"r": [1] * 3}


def test_requests_of_others_go_on_while_an_adapter_is_read() -> None:
    rig = Rig()
    rig.hold = Event()
    rig.begin("a", "one")
    rig.ask("base", "")
    for _ in range(20):
        rig.step()
    assert rig.tokens == {"base": [0] * 3} and rig.service.has_work()
    rig.hold.set()
    assert rig.problems() == {"load a": ""}


def test_after_a_restart_what_was_loaded_comes_back_and_requests_wait_for_it() -> None:
    before = Rig()
    for name, path in (("a", "one"), ("b", "two"), ("c", "three")):
        before.begin(name, path)
    before.run()
    before.unload("c")
    (told,) = [message for message in before.run() if isinstance(message, Adapters)]
    after = Rig()
    after.files["two"] = "changed"
    after.hold = Event()
    join = Join(gateway=0, address="", adapters=told.adapters, revision=told.revision)
    assert after.service.join(join) is None, "all are told, with the next step"
    assert after.ask("early", "a") is None and after.ask("lost", "b") is None and after.ask("gone", "a") is None
    after.service.abort("gone")
    after.step()
    assert names(after.said[0]) == ["a", "b"] and after.said[0].revision == told.revision
    after.late_s = 5.0
    after.hold.set()
    said = after.run()
    assert after.tokens == {"early": [1] * 3}
    assert spent_by_phase(after.events["early"])[Phase.WAIT_ADAPTER] >= 5e6, "from when it came"
    assert [message.request_id for message in said if isinstance(message, Refused)] == ["lost"]
    assert names(after.service.join(join)) == ["a"], "what has changed on disk is not served under the old name"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"enabled": False}, "start it with --enable-lora"),
        ({"max_cpu_loras": 1}, "1 adapters are loaded, as many as may be"),
        ({"max_bytes": 200}, "unload one, or raise lora.host_memory_gib"),
    ],
)
def test_there_are_bounds(change: dict[str, Any], problem: str) -> None:
    rig = Rig(**change)
    rig.begin("a", "one")
    rig.run()
    rig.begin("b", "two")
    assert problem in rig.problems()["load b"]


def test_what_cannot_be_loaded_says_why_and_leaves_what_there_was() -> None:
    rig = Rig()
    rig.begin("a", "one")
    rig.run()
    rig.begin("a", "nowhere", in_place=True)
    assert rig.problems() == {"load a": "there is nothing"}
    rig.lines = NUM_BLOCKS
    rig.begin("b", "two")
    assert "takes 40 blocks of the KV cache, which has 40" in rig.problems()["load b"]
    rig.ask("r", "a")
    rig.run()
    assert rig.tokens == {"r": [1] * 3}


def test_more_adapters_than_fit_at_once_take_turns() -> None:
    rig = Rig()
    rig.lines = 15
    for name in ("one", "two", "three"):
        rig.begin(name, name)
    rig.run()
    for turn in range(4):
        for name in ("one", "two", "three"):
            assert rig.ask(f"{name} {turn}", name) is None
    rig.run()
    assert {tuple(set(tokens)) for name, tokens in rig.tokens.items() if name.startswith("two")} == {(2,)}
    assert len(rig.tokens) == 12
    stats = rig.service.stats()
    assert stats.adapters.evictions_total > 0 and stats.kv_blocks_free == NUM_BLOCKS
