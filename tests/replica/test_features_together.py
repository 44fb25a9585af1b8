"""R16 with everything at once: whatever is switched on, and whoever else is served, a request gets the tokens that it
gets from a plain engine of its own."""

from __future__ import annotations

import json
import random
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

import kvarn
from kvarn.config.model import ModelConfig
from kvarn.grammar.text import from_json_schema, from_regex
from kvarn.replica.server.build import build_service
from kvarn.replica.server.generate import GenerateService
from kvarn.replica.spec import ReplicaSpec
from kvarn.wire.messages import FinishReason, Grammar, StepOutput, Submit
from kvarn.wire.sampling import SamplingParams
from profiles import effort

ASSETS = Path(kvarn.__file__).parent / "assets"
SCHEMA = {
    "type": "object",
    "properties": {
        "name_of_the_city": {"type": "string", "maxLength": 12},
        "temperature": {"type": "integer"},
        "conditions": {"enum": ["sunny", "rainy", "snowy"]},
    },
    "required": ["name_of_the_city", "temperature", "conditions"],
    "additionalProperties": False,
}
ROUNDS = effort(1, 12)

FEATURES: dict[str, dict[str, Any]] = {
    "ngram": {"speculation": {"method": "ngram", "adaptive": False}},
    "draft": {"speculation": {"method": "draft_model", "model": "kvarn-demo-draft", "adaptive": False}},
    "eagle": {"speculation": {"method": "eagle3", "model": "kvarn-demo-eagle3", "adaptive": False}},
    "tiers": {"kv_tiers": {"host_gib": 0.05}},
    "little memory": {"kv_cache_gib": 0.0007},
    "small steps": {"engine": {"token_budget": 24, "max_num_seqs": 6}},
}
ADAPTERS = [{"name": name, "path": str(ASSETS / "adapters" / name)} for name in ("pirate", "json")]
PLAIN: dict[str, Any] = {
    "adapters": ADAPTERS,
    "speculation": {"method": "none"},
    "kv_cache_gib": 0.05,
    "max_context_length": 128,
}
PAIRS = [pair for pair in combinations(FEATURES, 2) if not {"ngram", "draft", "eagle"}.issuperset(pair)]


def build(**settings: Any) -> GenerateService:
    config = ModelConfig(name="m", path="kvarn-demo", threads=1, **(PLAIN | settings))
    draft = config.speculation.model
    spec = ReplicaSpec(
        model=config.model_dump_json(),
        directory=str(ASSETS / "kvarn-demo"),
        draft_directory="" if draft is None else str(ASSETS / draft),
    )
    service = build_service(spec, lambda *_: None)
    assert isinstance(service, GenerateService)
    return service


def prompts() -> list[list[int]]:
    """Two beginnings that several prompts share, and what follows."""
    draw = random.Random(3)
    beginnings = [[draw.randrange(200, 4000) for _ in range(40)] for _ in range(2)]
    return [beginnings[index % 2] + [300 + index * 7 + place for place in range(index)] for index in range(4)]


def requests() -> list[Submit]:
    """Greedy and sampled, with several choices, penalties, log-probabilities, grammars, adapters, of two tenants."""
    grammars: list[Grammar | None] = [
        None,
        Grammar(text=from_json_schema(SCHEMA)),
        Grammar(text=from_regex(r"(ab|cd){3,9}[0-9]{4}")),
    ]
    samplings: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.8, "n": 2},
        {"temperature": 0.7, "top_p": 0.9, "repetition_penalty": 1.1},
        {"temperature": 0.0, "logprobs": 2},
    ]
    made: list[Submit] = []
    for index, prompt in enumerate(prompts()):
        for which, grammar in enumerate(grammars):
            sampling = samplings[(index + which) % len(samplings)]
            made.append(
                Submit(
                    request_id=f"{index}-{which}",
                    prompt_token_ids=prompt,
                    sampling=SamplingParams(seed=index, max_tokens=48, stop_token_ids=[2], **sampling),
                    tenant=f"t{index % 2}",
                    adapter=("", "pirate", "json")[(index + 2 * which) % 3],
                    grammar=grammar,
                )
            )
    return made


Answers = dict[tuple[str, int], tuple[list[int], FinishReason | None]]


def run(service: GenerateService, messages: list[Submit]) -> Answers:
    for message in messages:
        assert service.accept(message) is None
    tokens: dict[tuple[str, int], list[int]] = {}
    reasons: dict[tuple[str, int], FinishReason | None] = {}
    while service.has_work():
        for output in service.step():
            assert isinstance(output, StepOutput), output
            for delta in output.deltas:
                key = (delta.request_id, delta.index)
                tokens.setdefault(key, []).extend(delta.token_ids)
                reasons[key] = delta.finish_reason or reasons.get(key)
    return {key: (tokens[key], reasons[key]) for key in tokens}


@cache
def alone() -> Answers:
    """What each request gets from a plain engine in which nothing else runs and nothing is cached."""
    service = build(engine={"prefix_cache": False})
    answers: Answers = {}
    for message in requests():
        answers |= run(service, [message])
    service.shutdown()
    return answers


def check(settings: dict[str, Any], seed: int) -> GenerateService:
    """All requests at once, twice (the second time their prompts are cached), in some order."""
    service = build(**settings)
    expected = alone()
    for order in range(2):
        messages = requests()
        random.Random(seed + order).shuffle(messages)
        answers = run(service, messages)
        assert answers.keys() == expected.keys()
        for key, answer in answers.items():
            assert answer == expected[key], key
    return service


@pytest.mark.parametrize("seed", range(ROUNDS))
@pytest.mark.parametrize("pair", PAIRS, ids=" and ".join)
def test_tokens_are_those_of_a_request_alone(pair: tuple[str, str], seed: int) -> None:
    settings: dict[str, Any] = {}
    for name in pair:
        settings |= FEATURES[name]
    service = check(settings, seed)
    stats = service.stats()
    if "speculation" in settings:
        assert stats.speculation.accepted_tokens_total > 0
    if "little memory" in pair and "small steps" not in pair:
        assert stats.preemptions_total > 0
    service.shutdown()


def test_tokens_are_the_same_with_all_at_once() -> None:
    settings: dict[str, Any] = {}
    for name in ("eagle", "tiers", "little memory", "small steps"):
        settings |= FEATURES[name]
    check(settings, 7).shutdown()


@pytest.mark.parametrize("seed", range(effort(1, 12)))
@pytest.mark.parametrize("name", ["", *FEATURES])
def test_answers_that_begin_elsewhere_go_on_with_the_same_tokens(name: str, seed: int) -> None:
    """Each choice goes on from some token of its answer, or has ended."""
    service, draw = build(**FEATURES.get(name, {})), random.Random(seed)
    wanted: Answers = {}
    messages: list[Submit] = []
    for message in requests():
        drawn: list[list[int] | None] = []
        for index in range(message.sampling.n):
            tokens, reason = alone()[message.request_id, index]
            known = draw.randrange(len(tokens))
            ended = index + 1 < message.sampling.n and draw.random() < 0.3
            drawn.append(None if ended else tokens[:known])
            if not ended:
                wanted[message.request_id, index] = (tokens[known:], reason)
        messages.append(msgspec.structs.replace(message, resume_token_ids=drawn))
    draw.shuffle(messages)
    assert run(service, messages) == wanted
    service.shutdown()


def test_answers_follow_their_grammars() -> None:
    """What the other tests compare with is itself right."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(ASSETS / "kvarn-demo" / "tokenizer.json"))
    finished = 0
    for (request_id, _), (tokens, reason) in alone().items():
        if request_id.endswith("-1") and reason is FinishReason.STOP:
            jsonschema.validate(json.loads(tokenizer.decode(tokens)), SCHEMA)
            finished += 1
    assert finished >= 2
