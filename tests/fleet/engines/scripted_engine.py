"""An engine for tests of the process around it: the real `EngineCore` and services over a modelled executor.

The next token is the last one plus one. The spec's `directory` holds a script as JSON: `step_s` seconds a step takes,
`fail_at_token` a token after which it fails, `fail_to_load` a message to fail with, `architecture_from` a variable of
its environment.
"""

from __future__ import annotations

import json
import os
from typing import Any

from kvarn.clock import SYSTEM_CLOCK
from kvarn.engine.core import EngineParts
from kvarn.engine.plan import NewSequence
from kvarn.replica.server.embed import EmbedService
from kvarn.replica.server.generate import GenerateService
from kvarn.replica.spec import ReplicaSpec, ReportProgress
from kvarn.wire.messages import ModelCard
from kvarn.worker.modelled import ModelledExecutor

VOCAB_SIZE = 100_000


def executor_of(script: dict[str, Any]) -> ModelledExecutor:
    def next_token(token: int, _sequence: NewSequence) -> int:
        if token == script.get("fail_at_token"):
            raise RuntimeError("the device is on fire")
        return (token + 1) % VOCAB_SIZE

    seconds, blocks = script.get("step_s", 0.0), script.get("num_blocks", 4096)
    return ModelledExecutor(
        lambda shape: seconds, SYSTEM_CLOCK, next_token, num_blocks=blocks, max_context_length=65_536
    )


class CountingEncoder:
    """An input's vector is its number of tokens, as one byte."""

    def __init__(self, script: dict[str, Any]) -> None:
        self._step_s = script.get("step_s", 0.0)

    def shutdown(self) -> None:
        pass

    def embed(self, inputs: list[list[int]]) -> list[bytes]:
        SYSTEM_CLOCK.sleep(self._step_s)
        return [bytes([len(tokens)]) for tokens in inputs]


def build(spec: ReplicaSpec, report: ReportProgress) -> GenerateService | EmbedService:
    script = json.loads(spec.directory)
    report("read the script", 0.5)
    if "fail_to_load" in script:
        raise ValueError(script["fail_to_load"])
    SYSTEM_CLOCK.sleep(script.get("load_s", 0.0))
    return _service(spec, script)


class SleepingScript:
    """Falls asleep, and wakes, at once."""

    nbytes = 0

    def __init__(self, spec: ReplicaSpec, script: dict[str, Any]) -> None:
        self._made_from = spec, script

    def wake(self, report: ReportProgress) -> GenerateService | EmbedService:
        return _service(*self._made_from)


def _service(spec: ReplicaSpec, script: dict[str, Any]) -> GenerateService | EmbedService:
    config = spec.model_config.engine
    card = ModelCard(
        kind=script.get("kind", "generate"),
        architecture=os.environ.get(script.get("architecture_from", ""), "Scripted"),
        dtype="none",
        vocab_size=VOCAB_SIZE,
        max_context_length=65_536,
        num_parameters=0,
        start_s={"read the script": 0.0},
    )
    if card.kind == "embed":
        return EmbedService(CountingEncoder(script), config, card)
    return GenerateService(EngineParts(executor_of(script), config), card, sleep=lambda: SleepingScript(spec, script))
