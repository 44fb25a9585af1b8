"""What an engine's service tells, and how often."""

from __future__ import annotations

from typing import Any

from kvarn.config.engine import EngineConfig
from kvarn.engine.core import EngineParts
from kvarn.replica.server.generate import GenerateService
from kvarn.wire.messages import ModelCard, RefusalReason, StepOutput, Submit
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


def test_a_step_with_nothing_to_do_says_nothing():
    assert list(Rig(step_s=0.01).service.step()) == []
