"""Answers of a random model that are kept to grammars: all valid, and the same whatever else happens."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema_rs
import pytest

from answer_schemas import SCHEMAS
from guesses import FreeProposer
from kvarn.config.speculation import SpeculationConfig
from kvarn.engine.request import Sequence
from kvarn.grammar.masks import GrammarMask, GrammarMasks
from kvarn.grammar.text import check, from_choices, from_json_schema, from_regex
from kvarn.grammar.vocabulary import Vocabulary
from kvarn.wire.messages import FinishReason, Grammar, Submit
from kvarn.wire.sampling import SamplingParams
from profiles import effort
from small_vocabulary import END, MERGED, small_tokenizer

WIDTH = 500
"""Of the tiny model's logits."""
GENERATIONS = effort(160, 10_000)
GRAMMARS = {name: from_json_schema(schema) for name, schema in SCHEMAS.items()}


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary(small_tokenizer(MERGED), WIDTH, [END])


@pytest.fixture
def masks(vocabulary: Vocabulary) -> Iterator[GrammarMasks]:
    made = GrammarMasks(vocabulary, 2)
    yield made
    made.shutdown()


def never_forced(masks: GrammarMasks) -> Callable[[Submit], Any]:
    """The same masks, without any token computed before it is drawn."""

    class Drawn:
        def __init__(self, inner: GrammarMask) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def forced(self, index: int, output_token_ids: list[int]) -> list[int]:
            return []

    def make(message: Submit) -> Any:
        mask = masks(message)
        return None if mask is None else Drawn(mask)

    return make


class Guesser(FreeProposer):
    """Proposes what another run answered, now and then wrong."""

    def __init__(self, known: dict[tuple[str, int], Any]) -> None:
        super().__init__()
        self._known = known
        self._chance = random.Random(4)

    def guess(self, sequence: Sequence, limit: int) -> list[int]:
        answer = self._known.get((sequence.request.request_id, sequence.index))
        if answer is None:
            return []
        tokens = answer.token_ids[sequence.num_outputs :][: min(limit, self._chance.randrange(6))]
        return [token if self._chance.random() < 0.8 else self._chance.randrange(WIDTH) for token in tokens]


def guessing(guesser: Guesser | None) -> dict[str, Any]:
    """Options of an engine that verifies all guesses, whether they pay or not."""
    return {"proposer": guesser, "speculation": SpeculationConfig(adaptive=False)}


def request(number: int, *, max_tokens: int = 150, **more: Any) -> tuple[str, Submit]:
    """The name of a schema, and a request for it; of all kinds in turn."""
    chance = random.Random(number)
    name = list(GRAMMARS)[number % len(GRAMMARS)]
    sampling: dict[str, Any] = {"temperature": chance.choice([0.0, 0.7, 1.5]), "seed": number, **more}
    if number % 7 == 0:
        sampling["logprobs"] = 1
    if number % 11 == 0:
        sampling |= {"bad_words": [[chance.randrange(256)]], "frequency_penalty": 1.0, "min_tokens": 5}
    return name, Submit(
        request_id=f"r{number}",
        prompt_token_ids=[chance.randrange(256) for _ in range(1 + number % 40)],
        sampling=SamplingParams(max_tokens=max_tokens, stop_token_ids=[END], n=1 + (number % 5 == 0), **sampling),
        grammar=Grammar(text=GRAMMARS[name]),
    )


def written(vocabulary: Vocabulary, answer: Any) -> str:
    tokens = [token for token in answer.token_ids if token != END]
    return b"".join(map(vocabulary.bytes_of, tokens)).decode()


VALID = {name: jsonschema_rs.validator_for(schema, validate_formats=True).is_valid for name, schema in SCHEMAS.items()}


def tokens_of(answers: dict[tuple[str, int], Any]) -> dict[tuple[str, int], tuple[list[int], FinishReason | None]]:
    return {key: (answer.token_ids, answer.finish_reason) for key, answer in answers.items()}


def test_each_schema_can_be_enforced() -> None:
    for grammar in GRAMMARS.values():
        check(grammar)


def test_every_finished_answer_is_valid(stack, tiny_model, vocabulary, masks):
    """Little memory, so that they preempt each other; guesses, some of them wrong; some are aborted on the way."""
    chance, model = random.Random(1), tiny_model("llama")
    finished = done = 0
    while done < GENERATIONS:
        asked = [request(done + place) for place in range(40)]
        names = {message.request_id: name for name, message in asked}
        messages = [message for _, message in asked]
        guesser = Guesser(stack(model, masks=masks).generate(messages)) if done % 80 == 0 else None
        engine = stack(model, masks=masks, num_blocks=60, max_num_seqs=12, token_budget=64, **guessing(guesser)).engine
        texts: dict[tuple[str, int], bytes] = {}
        reasons: dict[tuple[str, int], FinishReason] = {}
        for message in messages:
            engine.add(message)
        while engine.has_work():
            if chance.random() < 0.02:
                engine.abort(chance.choice(messages).request_id)
            output = engine.step()
            assert not output.refused
            for delta in output.deltas:
                key = (delta.request_id, delta.index)
                more = b"".join(vocabulary.bytes_of(token) for token in delta.token_ids if token != END)
                texts[key] = texts.get(key, b"") + more
                if delta.finish_reason is not None:
                    reasons[key] = delta.finish_reason
        engine.check_integrity()
        for key, reason in reasons.items():
            if reason is FinishReason.STOP:
                finished += 1
                assert VALID[names[key[0]]](json.loads(texts[key])), texts[key]
        done += len(messages)
    assert finished > GENERATIONS / 2


@pytest.mark.thorough
def test_a_token_depends_on_its_request_alone(stack, tiny_model, masks):
    """Alone, beside others, without memory to spare, planned ahead, with guesses, with and without fast-forward."""
    model = tiny_model("llama")
    messages = [request(number, max_tokens=60)[1] for number in range(effort(24, 200))]
    messages.append(Submit(request_id="free", prompt_token_ids=[1, 2], sampling=SamplingParams(seed=1, max_tokens=60)))
    together = stack(model, masks=masks).generate(messages)
    expected = tokens_of(together)
    for message in messages[:: effort(6, 1)]:
        alone = tokens_of(stack(model, masks=masks).generate([message]))
        assert alone == {key: expected[key] for key in alone}
    guesser = Guesser(together)
    steps: dict[str, int] = {}
    for name, options in {
        "drawn one by one": {"masks": never_forced(masks)},
        "small steps": {"masks": masks, "token_budget": 32},
        "preempted": {"masks": masks, "num_blocks": 12},
        "planned ahead": {"masks": masks, "plans_ahead": True},
        "guessed": {"masks": masks, **guessing(guesser)},
        "guessed and drawn one by one": {"masks": never_forced(masks), "num_blocks": 12, **guessing(guesser)},
        "as before": {"masks": masks},
    }.items():
        made = stack(model, **options)
        assert tokens_of(made.generate(messages)) == expected, name
        steps[name] = made.engine.stats().step
        assert name != "preempted" or made.engine.stats().preemptions_total > 0
    assert guesser.num_proposed > 100


def test_forced_tokens_take_few_steps(stack, tiny_model, vocabulary, masks):
    text = json.dumps({"a constant": ["that is", "quite long"]})
    grammar = Grammar(text=from_json_schema({"const": json.loads(text)}))
    sampling = SamplingParams(seed=1, max_tokens=200, stop_token_ids=[END])
    message = Submit(request_id="r", prompt_token_ids=[1], sampling=sampling, grammar=grammar)
    made = stack(tiny_model("llama"), masks=masks)
    (answer,) = made.generate([message]).values()
    assert written(vocabulary, answer) == text
    assert made.engine.stats().step <= 2 < 20 < len(answer.token_ids)


def test_a_grammar_overrides_token_constraints(stack, tiny_model, vocabulary, masks):
    """Beside allowed tokens, bad words and biases that leave none of its tokens, and `min_tokens` after its end."""
    made = stack(tiny_model("llama"), masks=masks)
    for more in (
        {"allowed_token_ids": [5]},
        {"bad_words": [[token] for token in range(WIDTH)]},
        {"logit_bias": dict.fromkeys(range(WIDTH), -100.0)},
        {"min_tokens": 30},
    ):
        sampling = SamplingParams(seed=1, max_tokens=40, stop_token_ids=[END], **more)
        grammar = Grammar(text=from_choices(["yes", "no"]))
        message = Submit(request_id="r", prompt_token_ids=[1], sampling=sampling, grammar=grammar)
        (answer,) = made.generate([message]).values()
        assert written(vocabulary, answer) in ("yes", "no") and answer.finish_reason is FinishReason.STOP


def test_a_grammar_begins_behind_free_text(stack, tiny_model, vocabulary, masks):
    """No end token is drawn before; where the free text never ends, the answer is as long as it may be."""
    grammar = Grammar(text=from_regex("[xy]{3}"), after=["q", "Q"])
    messages = [
        Submit(
            request_id=f"r{seed}",
            prompt_token_ids=[seed % 256],
            sampling=SamplingParams(seed=seed, max_tokens=80, stop_token_ids=[END], temperature=2.0),
            grammar=grammar,
        )
        for seed in range(effort(30, 500))
    ]
    reasons = set[FinishReason | None]()
    plain = stack(tiny_model("llama"), masks=masks).generate(messages)
    guessed = stack(tiny_model("llama"), masks=masks, **guessing(Guesser(plain))).generate(messages)
    assert tokens_of(plain) == tokens_of(guessed)
    for answer in plain.values():
        reasons.add(answer.finish_reason)
        text = b"".join(vocabulary.bytes_of(token) for token in answer.token_ids if token != END)
        place = min((place + len(end) for end in (b"q", b"Q") if (place := text.find(end)) >= 0), default=None)
        if answer.finish_reason is FinishReason.STOP:
            assert place is not None and len(text[place:]) == 3 and set(text[place:]) <= set(b"xy")
        else:
            assert place is None or set(text[place:]) <= set(b"xy")
    assert reasons == {FinishReason.STOP, FinishReason.LENGTH}
