"""Services of one model in one process or several, and requests to compare their answers with."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import kvarn
from kvarn.config.model import ModelConfig
from kvarn.grammar.text import from_regex
from kvarn.replica.server.build import build_service
from kvarn.replica.server.generate import GenerateService
from kvarn.replica.spec import ReplicaSpec
from kvarn.wire.messages import Grammar, StepOutput, Submit
from kvarn.wire.sampling import SamplingParams

ASSETS = Path(kvarn.__file__).parent / "assets"

Answers = dict[tuple[str, int], tuple[list[int], list[Any], list[Any] | None]]


def build(directory: Path, **settings: Any) -> GenerateService:
    """The service of a model with these settings, all its processes running."""
    given = {"kv_cache_gib": 0.05, "max_context_length": 128, "threads": 1} | settings
    config = ModelConfig(name="m", path=str(directory), **given)
    draft = config.speculation.model
    spec = ReplicaSpec(
        model=config.model_dump_json(),
        directory=str(directory),
        draft_directory="" if draft is None else str(ASSETS / draft),
    )
    service = build_service(spec, lambda *_: None)
    assert isinstance(service, GenerateService)
    return service


def requests(vocabulary: range, count: int, *, with_grammars: bool, longest: int = 50) -> list[Submit]:
    """Greedy and sampled, with several choices, penalties, log-probabilities and grammars; some prompts begin alike."""
    draw = random.Random(3)
    beginnings = [[draw.choice(vocabulary) for _ in range(33)] for _ in range(4)]
    samplings: list[dict[str, Any]] = [
        {"temperature": 0.0, "logprobs": 2, "prompt_logprobs": 1},
        {"temperature": 0.9, "n": 3},
        {"temperature": 0.7, "top_p": 0.9, "repetition_penalty": 1.1},
        {"temperature": 0.0},
    ]
    made: list[Submit] = []
    for index in range(count):
        prompt = (beginnings[index % 7] if index % 7 < 4 else []) + [
            draw.choice(vocabulary) for _ in range(draw.randrange(1, longest))
        ]
        made.append(
            Submit(
                request_id=f"r{index}",
                prompt_token_ids=prompt,
                sampling=SamplingParams(seed=index, max_tokens=draw.randrange(1, 16), **samplings[index % 4]),
                tenant=f"t{index % 2}",
                grammar=Grammar(text=from_regex("(ab|cd){3,9}[0-9]{4}")) if with_grammars and index % 9 == 0 else None,
            )
        )
    return made


def run(service: GenerateService, messages: list[Submit]) -> Answers:
    """Tokens, log-probabilities and those of the prompt, by request and choice."""
    for message in messages:
        assert service.accept(message) is None
    answers: Answers = {}
    while service.has_work():
        for output in service.step():
            assert isinstance(output, StepOutput), output
            for delta in output.deltas:
                tokens, logprobs, of_prompt = answers.get((delta.request_id, delta.index), ([], [], None))
                told = (tokens + delta.token_ids, logprobs + (delta.logprobs or []), of_prompt or delta.prompt_logprobs)
                answers[delta.request_id, delta.index] = told
    return answers
