"""The exact cache: the same answer in every form, for the same request of the same project, and only for that."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from sqlalchemy import select

from asking import CHAT, chat, events_of, metric
from kvarn.store.models import UsageEvent
from scripted_answers import called

TOOL: Any = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def greedy(text: str = "x", **fields: Any) -> dict[str, Any]:
    return chat(text, temperature=0, **fields)


def result_of(answer: Any) -> str | None:
    found: str | None = answer.headers.get("x-kvarn-cache")
    return found


def content_of(answer: Any) -> str:
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["message"]["content"]
    return text


def streamed(answer: Any) -> list[Any]:
    """The events of a stream without ids and times."""
    return [{**event, "id": "", "created": 0, "usage": None} for event in events_of(answer)]


def test_the_second_of_two_equal_requests_asks_no_model_and_tells_the_tokens(server, cached):
    first, second = (cached.post(CHAT, json=greedy()) for _ in range(2))
    assert (result_of(first), result_of(second)) == ("miss", "hit")
    assert content_of(first) == content_of(second) and len(server.chat.submitted) == 1
    assert second.headers["x-kvarn-cache-key"] == first.headers["x-kvarn-cache-key"]
    assert int(second.headers["x-kvarn-cache-age"]) >= 0 and first.json()["id"] != second.json()["id"]
    before, after = first.json()["usage"], second.json()["usage"]
    assert (after["prompt_tokens"], after["completion_tokens"]) == (
        before["prompt_tokens"],
        before["completion_tokens"],
    )
    assert after["prompt_tokens_details"]["cached_tokens"] == after["prompt_tokens"]
    assert metric(cached, "kvarn_response_cache_requests_total", model="tiny", result="hit") >= 1
    assert metric(cached, "kvarn_response_cache_bytes") > 0


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n": 2},
        {"logprobs": True, "top_logprobs": 2},
        {"return_token_ids": True},
        {"stop": ["vär"]},
        {"max_tokens": 3},
        {"response_format": {"type": "text"}},
    ],
)
def test_an_answer_is_given_again_as_it_was_whole_and_as_a_stream(server, cached, fields):
    body = greedy(**fields)
    first, second = (cached.post(CHAT, json=body) for _ in range(2))
    assert result_of(second) == "hit" and first.json()["choices"] == second.json()["choices"]
    asked, fresh = len(server.chat.submitted), {"stream": True, "cache": {"no-cache": True, "no-store": True}}
    without = cached.post(CHAT, json=body | fresh)
    again = cached.post(CHAT, json=body | {"stream": True})
    assert result_of(again) == "hit" and len(server.chat.submitted) == asked + 1
    assert _joined(streamed(again)) == _joined(streamed(without))


def _joined(events: list[Any]) -> dict[int, dict[str, Any]]:
    """What a client has of each choice in the end, however its stream was cut."""
    found: dict[int, dict[str, Any]] = {}
    for event in events:
        for choice in event["choices"]:
            whole = found.setdefault(choice["index"], {"content": "", "logprobs": [], "token_ids": []})
            whole["content"] += choice["delta"].get("content") or ""
            whole["logprobs"] += (choice.get("logprobs") or {}).get("content") or []
            whole["token_ids"] += choice.get("token_ids") or []
            whole["finish_reason"] = choice["finish_reason"]
    return found


def test_calls_of_tools_are_given_again_with_ids_of_their_own(scripted, cached):
    scripted("Let me see. " + called("add", a=1) + called("add", b=2))
    first, second = (cached.post(CHAT, json=greedy(tools=[TOOL])).json()["choices"][0] for _ in range(2))
    assert first["finish_reason"] == second["finish_reason"] == "tool_calls"
    functions = [[call["function"] for call in each["message"]["tool_calls"]] for each in (first, second)]
    assert functions[0] == functions[1] and len(functions[0]) == 2
    ids = [call["id"] for each in (first, second) for call in each["message"]["tool_calls"]]
    assert len(set(ids)) == 4


def test_completions_of_several_prompts_are_cached_too(server, cached):
    body = {"model": "tiny", "prompt": ["a", "bc"], "n": 2, "max_tokens": 5, "temperature": 0, "logprobs": 1}
    first, second = (cached.post("/v1/completions", json=body | {"echo": True}) for _ in range(2))
    assert result_of(second) == "hit" and first.json()["choices"] == second.json()["choices"]
    assert first.json()["usage"]["total_tokens"] == second.json()["usage"]["total_tokens"]


def test_responses_and_messages_use_it_by_body_or_headers(server, cached):
    body = {"model": "tiny", "input": "x", "temperature": 0, "store": False}
    texts = [cached.post("/v1/responses", json=body) for _ in range(2)]
    assert (
        result_of(texts[1]) == "hit"
        and texts[0].json()["output"][0]["content"] == texts[1].json()["output"][0]["content"]
    )
    assert result_of(cached.post("/v1/responses", json=body | {"cache": {"no-cache": True}})) == "bypass"
    body = {"model": "tiny", "messages": [{"role": "user", "content": "y"}], "max_tokens": 50, "temperature": 0}
    told = [
        result_of(cached.post("/v1/messages", json=body, headers={"anthropic-version": "2023-06-01"})) for _ in "ab"
    ]
    assert told == ["miss", "hit"]


@pytest.mark.parametrize(
    "other",
    [
        {"messages": [{"role": "user", "content": "y"}]},
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "x"}]},
        {"max_tokens": 7},
        {"stop": ["q"]},
        {"n": 2},
        {"logprobs": True},
        {"presence_penalty": 1},
        {"tools": [TOOL]},
        {"response_format": {"type": "json_object"}},
        {"cache_salt": "s"},
        {"cache": {"namespace": "s"}},
        {"seed": 5, "temperature": 1},
        {"skip_special_tokens": False},
        {"min_tokens": 2},
    ],
)
def test_whatever_may_change_the_answer_is_part_of_the_key(cached, other):
    keys = [cached.post(CHAT, json=body).headers["x-kvarn-cache-key"] for body in (greedy(), {**greedy(), **other})]
    assert keys[0] != keys[1]


def test_what_has_no_part_in_the_answer_has_none_in_the_key(cached):
    others: list[dict[str, Any]] = [
        {},
        {"user": "somebody"},
        {"metadata": {"a": "b"}},
        {"stream": True},
        {"priority": 1},
        {"seed": 5},
        {"prompt_cache_key": "k"},
        {"cache": {"ttl": 60}},
    ]
    keys = {cached.post(CHAT, json=greedy(**other)).headers["x-kvarn-cache-key"] for other in others}
    assert len(keys) == 1


def test_an_adapter_with_another_digest_has_other_answers(server, cached):
    from kvarn.wire.messages import AdapterInfo

    keys = []
    for digest in ("one", "two"):
        server.chat.adapters = {"law": AdapterInfo(name="law", path="/law", digest=digest)}
        keys.append(cached.post(CHAT, json=greedy(model="law")).headers["x-kvarn-cache-key"])
    assert keys[0] != keys[1]


@pytest.mark.parametrize(("field", "value"), [("tool_format", "hermes"), ("reasoning_format", "qwen3")])
def test_answers_that_were_read_in_another_format_are_not_found(server, cached, monkeypatch, field, value):
    assert result_of(cached.post(CHAT, json=greedy())) == "miss"
    config = server.served["tiny"].config
    monkeypatch.setattr(server.served["tiny"], "config", config.model_copy(update={field: value}))
    assert result_of(cached.post(CHAT, json=greedy())) == "miss"


def test_sampled_requests_are_left_alone_unless_they_are_seeded_or_ask(server, cached):
    assert [result_of(cached.post(CHAT, json=chat())) for _ in "ab"] == ["bypass", "bypass"]
    assert [result_of(cached.post(CHAT, json=chat(seed=3))) for _ in "ab"] == ["miss", "hit"]
    wish = {"cache": {"sampled": True}}
    assert [result_of(cached.post(CHAT, json=chat(**wish))) for _ in "ab"] == ["miss", "hit"]


def test_a_seed_that_the_server_draws_for_a_response_in_the_background_is_no_seed_of_the_client(
    server, cached, wait_for
):
    def ask(headers: dict[str, str] | None = None, **fields: Any) -> None:
        body = {"model": "tiny", "input": "x", "background": True, **fields}
        asked = cached.post("/v1/responses", json=body, headers=headers)
        path = f"/v1/responses/{asked.json()['id']}"
        wait_for(lambda: cached.get(path).json()["status"] == "completed", "the response")

    def count(result: str) -> float:
        return metric(cached, "kvarn_response_cache_requests_total", model="tiny", result=result)

    before = count("bypass"), count("hit")
    ask()
    assert (count("bypass"), count("hit")) == (before[0] + 1, before[1])
    for _ in "ab":
        ask(cache={"sampled": True})
    assert (count("bypass"), count("hit")) == (before[0] + 1, before[1] + 1)
    ask({"x-kvarn-cache": "bypass"}, cache={"sampled": True})
    assert (count("bypass"), count("hit")) == (before[0] + 2, before[1] + 1), "headers reach it too"


def test_requests_say_what_they_want_of_the_cache(server, cached):
    def ask(cache: dict[str, Any] | None = None, **headers: str) -> str | None:
        wish = {} if cache is None else {"cache": cache}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return result_of(cached.post(CHAT, json=greedy(**wish), headers=named))

    assert ask({"no-store": True}) == "miss" and ask(cache_control="no-store") == "miss" and ask() == "miss"
    assert ask({"no-cache": True}) == "bypass" and ask(cache_control="no-cache") == "bypass"
    assert ask(x_kvarn_cache="bypass") == "bypass"
    assert ask({"s-maxage": 0}) == "miss" and ask(cache_control="max-age=0") == "miss"
    assert ask(cache_control="max-age=600") == ask({"s-maxage": 600}) == "hit"
    bad = cached.post(CHAT, json=greedy(cache={"ttl": -1}))
    assert bad.status_code == 400 and bad.json()["error"]["param"] == "cache.ttl"


def test_no_other_project_finds_an_answer_and_without_the_setting_there_is_none(server, cached, client):
    assert result_of(cached.post(CHAT, json=greedy())) == "miss"
    with server.add_tenant("another", response_cache="exact") as other:
        assert result_of(other.post(CHAT, json=greedy())) == "miss"
    assert result_of(client.post(CHAT, json=greedy())) is None


def test_answers_go_with_the_salt_of_the_projects_prompts(server, cached, request):
    assert [result_of(cached.post(CHAT, json=greedy())) for _ in "ab"] == ["miss", "hit"]
    name = request.node.name
    principal = server.authenticator.principals[name]
    server.authenticator.principals[name] = dataclasses.replace(principal, cache_salt=principal.cache_salt + ".1")
    assert result_of(cached.post(CHAT, json=greedy())) == "miss"


def test_an_answer_that_was_not_read_to_its_end_is_not_kept(server, cached, wait_for):
    server.chat.step_s = 0.05
    with cached.stream("POST", CHAT, json=greedy(stream=True)) as stream:
        next(stream.iter_lines())
    wait_for(lambda: server.chat.aborted, "the request to be given up")
    server.chat.step_s = 0
    assert result_of(cached.post(CHAT, json=greedy())) == "miss"


def test_a_hit_is_on_the_ledger_with_its_cache_and_costs_nothing(server, cached, request, wait_for):
    organization = server.authenticator.principals[request.node.name].organization_id

    async def read() -> list[UsageEvent]:
        async with server.gateway.store.reading() as session:
            query = select(UsageEvent).where(UsageEvent.organization_id == organization)
            return list((await session.execute(query)).scalars())

    for _ in "ab":
        cached.post(CHAT, json=greedy())
    wait_for(lambda: len(server.do(read())) == 2, "two events")
    events = {event.cache: event for event in server.do(read())}
    hit, miss = events["exact"], events[None]
    assert (hit.input_tokens, hit.output_tokens) == (miss.input_tokens, miss.output_tokens)
    assert (hit.cached_tokens, hit.cost, hit.outcome, hit.replica) == (hit.input_tokens, 0, "finished", "")


def test_limits_hold_for_answers_that_are_here(server, request):
    from kvarn.store.owner import LimitRule

    with server.add_tenant(request.node.name, response_cache="exact") as client:
        principal = server.authenticator.principals[request.node.name]
        rule = LimitRule(principal.project_id, requests_per_minute=2)
        server.authenticator.principals[request.node.name] = dataclasses.replace(principal, limits=(rule,))
        answers = [client.post(CHAT, json=greedy()) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429] and result_of(answers[1]) == "hit"
