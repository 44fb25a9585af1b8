from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvarn.config.gateway import GatewayConfig
from kvarn.text.sampling import chat_sampling, check_sampling, completion_sampling, stop_strings
from kvarn.text.tokenizer import Tokenizer
from kvarn.wire.openai.chat.request import ChatCompletionRequest
from kvarn.wire.openai.completions import CompletionRequest
from kvarn.wire.openai.errors import ApiError
from kvarn.wire.openai.parse import validate
from kvarn.wire.sampling import SamplingParams

LIMITS = GatewayConfig()


@pytest.fixture(scope="module")
def model(checkpoint: Callable[..., Path]) -> Tokenizer:
    return Tokenizer.load(checkpoint("byte_level", generation_config={"eos_token_id": [0, 1]}))


def chat_request(**fields: Any) -> ChatCompletionRequest:
    data = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    return validate(ChatCompletionRequest, data)


def chat(model: Tokenizer, prompt_tokens: int = 10, **fields: Any) -> SamplingParams:
    request = chat_request(**fields)
    checked = check_sampling(request, model, LIMITS)
    return chat_sampling(request, checked, LIMITS, prompt_tokens=prompt_tokens, context_length=100)


def completion(model: Tokenizer, prompt_tokens: int = 10, **fields: Any) -> SamplingParams:
    request = validate(CompletionRequest, {"model": "m", "prompt": "hi", **fields})
    checked = check_sampling(request, model, LIMITS)
    return completion_sampling(request, checked, LIMITS, prompt_tokens=prompt_tokens, context_length=100)


def refused(make: Callable[[], object]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        make()
    assert caught.value.status == 400
    assert caught.value.type == "invalid_request_error"
    assert len(caught.value.message) < 300
    return caught.value


def test_the_defaults_are_openais(model: Tokenizer) -> None:
    expected = SamplingParams(seed=5, max_tokens=90, stop_token_ids=[0, 1])
    assert chat(model, seed=5) == expected
    assert completion(model, seed=5) == msgspec.structs.replace(expected, max_tokens=16)
    assert completion(model, prompt_tokens=95).max_tokens == 5


def test_every_field_reaches_the_engine(model: Tokenizer) -> None:
    same = {"top_k": 5, "top_p": 0.5, "min_p": 0.1, "min_tokens": 3, "max_tokens": 20, "prompt_logprobs": 2, "n": 3}
    same |= {"repetition_penalty": 1.5, "presence_penalty": -2.0, "frequency_penalty": 2.0}
    params = chat(
        model,
        **same,
        seed=-1,
        temperature=0,
        logit_bias={"7": -100, "9": 2.5},
        allowed_token_ids=[9, 7, 9],
        bad_words=["mill"],
        stop_token_ids=[7],
        logprobs=True,
        top_logprobs=4,
    )
    assert params == SamplingParams(
        **same,
        seed=2**64 - 1,
        temperature=0.0,
        logit_bias={7: -100.0, 9: 2.5},
        allowed_token_ids=[7, 9],
        bad_words=[model.encode(word, add_special_tokens=False) for word in ("mill", " mill")],
        stop_token_ids=[0, 1, 7],
        logprobs=4,
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


def test_an_absent_seed_is_drawn_anew_each_time(model: Tokenizer) -> None:
    seeds = {chat(model).seed for _ in range(8)}
    assert len(seeds) == 8
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_ignore_eos_leaves_only_the_clients_own_stop_tokens(model: Tokenizer) -> None:
    assert chat(model, ignore_eos=True).stop_token_ids == []
    assert chat(model, ignore_eos=True, stop_token_ids=[7, 0]).stop_token_ids == [0, 7]


def test_top_k_of_minus_one_or_zero_keeps_all(model: Tokenizer) -> None:
    assert chat(model, top_k=-1).top_k == chat(model, top_k=0).top_k == 0


def test_logprobs_of_chat_and_completions_have_their_own_shapes(model: Tokenizer) -> None:
    assert chat(model).logprobs is None
    assert chat(model, logprobs=False).logprobs is None
    assert chat(model, logprobs=True).logprobs == 0
    assert completion(model, logprobs=0).logprobs == 0
    assert completion(model, logprobs=3).prompt_logprobs is None
    assert completion(model, logprobs=3, echo=True).prompt_logprobs == 3
    assert completion(model, logprobs=3, echo=True, prompt_logprobs=5).prompt_logprobs == 5


def test_max_completion_tokens_wins_over_its_older_name(model: Tokenizer) -> None:
    assert chat(model, max_tokens=5, max_completion_tokens=7).max_tokens == 7


def test_no_answer_at_all_may_be_asked_for_with_echo(model: Tokenizer) -> None:
    assert completion(model, max_tokens=0, echo=True).max_tokens == 1


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("temperature", [-0.1, 2.1, 1e308]),
        ("top_p", [0, -1, 1.1]),
        ("min_p", [-0.1, 1.1]),
        ("top_k", [-2, 2**31, 10**40]),
        ("repetition_penalty", [0, -1, 1e30]),
        ("presence_penalty", [-2.1, 2.1]),
        ("frequency_penalty", [-2.1, 2.1]),
        ("n", [0, -1, 33, 10**400]),
        ("seed", [2**64, -(2**63) - 1]),
        ("priority", [1001, -1001, 10**100]),
        ("max_tokens", [0, -1, 91, 10**40]),
        ("min_tokens", [-1, 91, 10**40]),
        ("prompt_logprobs", [-1, 21]),
        ("logit_bias", [{"-1": 0}, {"x": 0}, {"٣": 0}, {" 1": 0}, {"999999": 0}, {"9" * 5000: 0}, {"7": 100.5}]),
        ("allowed_token_ids", [[-1], [10**40]]),
        ("stop_token_ids", [[-1], [10**6]]),
        ("bad_words", [[""], [" "], ["x" * 2000], ["x"] * 300, ["\ud800"]]),
        ("stop", [["a", ""], "x" * 1025, ["x"] * 17, ["x"] * 100_000]),
    ],
)
def test_what_is_out_of_range_is_refused_by_name(model: Tokenizer, field: str, values: list[Any]) -> None:
    for value in values:
        assert refused(lambda value=value: chat(model, **{field: value})).param == field


def test_numbers_that_are_none_are_refused_even_where_they_got_past_the_parser() -> None:
    for value in (float("nan"), float("inf")):
        assert refused(lambda value=value: chat_request(temperature=value)).param == "temperature"
        assert refused(lambda value=value: chat_request(logit_bias={"7": value})).param == "logit_bias.7"


def test_chats_own_limits_are_refused_by_name(model: Tokenizer) -> None:
    assert refused(lambda: chat(model, logprobs=True, top_logprobs=21)).param == "top_logprobs"
    assert refused(lambda: chat(model, max_completion_tokens=0)).param == "max_completion_tokens"
    assert refused(lambda: completion(model, logprobs=21)).param == "logprobs"
    assert refused(lambda: chat(model, max_tokens=5, min_tokens=6)).param == "min_tokens"


def test_a_prompt_that_leaves_no_room_is_refused_with_openais_code(model: Tokenizer) -> None:
    for prompt_tokens in (100, 10**6):
        error = refused(lambda count=prompt_tokens: chat(model, prompt_tokens=count))
        assert (error.param, error.code) == ("messages", "context_length_exceeded")
        assert "100 tokens" in error.message
    assert refused(lambda: completion(model, prompt_tokens=0)).param == "prompt"
    error = refused(lambda: chat(model, max_tokens=91))
    assert (error.param, error.code) == ("max_tokens", "context_length_exceeded")


def test_a_bad_request_is_refused_before_its_prompt_is_known(model: Tokenizer) -> None:
    check_sampling(chat_request(min_tokens=50, stop=["a"]), model, LIMITS)
    assert refused(lambda: check_sampling(chat_request(n=99), model, LIMITS)).param == "n"
    assert refused(lambda: check_sampling(chat_request(stop=["x"] * 99), model, LIMITS)).param == "stop"


def test_stop_strings_come_as_a_list() -> None:
    assert stop_strings(chat_request(), LIMITS) == []
    assert stop_strings(chat_request(stop="a"), LIMITS) == ["a"]
    assert stop_strings(chat_request(stop=["a", "b"]), LIMITS) == ["a", "b"]


def test_prompts_of_one_request_draw_different_seeds_unless_the_client_gave_one(model: Tokenizer) -> None:
    for seed, different in ((None, 3), (7, 1)):
        request = CompletionRequest.model_validate({"model": "m", "prompt": ["a", "b", "c"], "seed": seed})
        checked = check_sampling(request, model, LIMITS)
        fitted = [completion_sampling(request, checked, LIMITS, prompt_tokens=1, context_length=9) for _ in range(3)]
        assert len({params.seed for params in fitted}) == different
