"""What an engine's service tells, and how often."""

from __future__ import annotations

from typing import Any, cast

from kvarn.config.engine import EngineConfig
from kvarn.engine.core import EngineParts
from kvarn.replica.server.generate import GenerateService
from kvarn.wire.messages import ModelCard, RefusalReason, Refused, StepOutput, Submit
from kvarn.wire.sampling import SamplingParams
from kvarn.worker.modelled import ModelledExecutor
from scripted_masks import ReadyMask

CARD = ModelCard(
    kind="generate", architecture="A", dtype="d", vocab_size=100, max_context_length=4096, num_parameters=0
)


class NeverReady(ReadyMask):
    ready = False


class Rig:
    """A service whose steps take `step_s` seconds of a clock of its own."""

    def __init__(self, step_s: float, **parts: Any) -> None:
        self.now = 100.0
        self._step_s = step_s
        engine = EngineParts(ModelledExecutor(), EngineConfig(), **parts)
        self.service = GenerateService(engine, CARD, clock=lambda: self.now)

    def answer(self, request_id: str, tokens: int) -> list[StepOutput]:
        sampling = SamplingParams(seed=0, max_tokens=tokens)
        assert self.service.accept(Submit(request_id=request_id, prompt_token_ids=[1], sampling=sampling)) is None
        outputs: list[StepOutput] = []
        while self.service.has_work():
            for output in self.service.step():
                assert isinstance(output, StepOutput)
                outputs.append(output)
            self.now += self._step_s
        return outputs


def test_an_adapter_that_is_not_loaded_is_refused_by_name():
    message = Submit(request_id="r", prompt_token_ids=[1], sampling=SamplingParams(seed=0), adapter="lora")
    refused = Rig(step_s=0.01).service.accept(message)
    assert refused is not None
    assert (refused.reason, "adapter 'lora' is not loaded" in refused.message) == (RefusalReason.INVALID, True)


def test_each_step_is_one_message_and_gauges_come_a_few_times_a_second():
    outputs = Rig(step_s=0.01).answer("r", 100)
    assert [len(output.deltas[0].token_ids) for output in outputs] == [1] * 100
    told = [place for place, output in enumerate(outputs) if output.stats is not None]
    assert told == [0, 25, 50, 75, 99]


def test_gauges_come_with_the_first_step_after_a_rest_and_the_last_before_one():
    rig = Rig(step_s=0.001)
    for name in ("first", "second"):
        outputs = rig.answer(name, 10)
        shown = [output.stats.running for output in outputs if output.stats is not None]
        assert shown == [1, 0]


def test_gauges_come_at_their_interval_while_all_work_waits():
    rig = Rig(step_s=0.01, masks=lambda message: NeverReady())
    assert rig.service.accept(Submit(request_id="r", prompt_token_ids=[1], sampling=SamplingParams(seed=0))) is None
    told = []
    for _ in range(100):
        told += [(output.stats.waiting, output.deltas) for output in rig.service.step()]
        rig.now += 0.01
    assert told == [(1, [])] * 4


class FailingLoad:
    """Adapters, of which one is read for two steps and cannot be loaded."""

    def __init__(self) -> None:
        self.steps = 2
        self.waiting: list[tuple[Submit, float]] = []

    @property
    def is_busy(self) -> bool:
        return self.steps > 0

    def resolve(self, request: Submit, now: float) -> str | None:
        self.waiting.append((request, now))
        return None if self.is_busy else "it could not be loaded"

    def poll(self) -> tuple[list[Any], list[tuple[Submit, float]], None]:
        self.steps -= 1
        return [], [] if self.is_busy else self.waiting[:1], None


def test_gauges_come_with_the_last_step_before_a_rest_where_nothing_was_computed():
    """Else who sent the request would take the engine for one that works and tells nothing."""
    engine, host = EngineParts(ModelledExecutor(), EngineConfig()), FailingLoad()
    service = GenerateService(engine, CARD, adapter_host=lambda core: cast(Any, host), clock=lambda: 100.0)
    request = Submit(request_id="r", prompt_token_ids=[1], sampling=SamplingParams(seed=0), adapter="a")
    assert service.accept(request) is None
    assert [type(each) for each in service.step()] == [StepOutput], "it has work"
    assert [type(each) for each in service.step()] == [Refused, StepOutput]
    assert not service.has_work()


def test_a_step_with_nothing_to_do_says_nothing():
    assert list(Rig(step_s=0.01).service.step()) == []
