"""The semantic cache through the gateway: a question that means the same is answered once the comparisons allow it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from asking import CHAT, chat, metric
from fake_replica import answer_text
from kvarn.answers.choice import ChoiceDelta
from kvarn.answers.packed_answer import joined_deltas, packed_delta
from kvarn.answers.stages.response_cache import ResponseCacheStage
from kvarn.answers.stages.semantic_cache import words_of
from kvarn.response_cache.store import Answer

ASKED = "how do I reset my password"
SAME = ["how can I reset my password", "please, how do I reset my password", "tell me how I can reset my password"]


@pytest.fixture
def project(server: Any, request: Any, monkeypatch: Any) -> Iterator[Any]:
    """A client of a project with the semantic cache, whose comparisons allow answers from the second on."""
    monkeypatch.setattr("kvarn.response_cache.threshold._RISK", 0.91)
    (stage,) = [each for each in server.gateway.steps.stages if isinstance(each, ResponseCacheStage)]
    monkeypatch.setattr(stage._semantic._questions, "_draw", lambda: 1.0)
    monkeypatch.setattr(stage._semantic._questions, "_bound", 0.05)
    server.chat.answer = lambda request, index: answer_text("Click here." if index == 0 else "")
    with server.add_tenant(request.node.name, response_cache="semantic") as client:
        yield client


def ask(client: Any, text: str, **fields: Any) -> Any:
    answer = client.post(CHAT, json=chat(text, temperature=0, **fields))
    assert answer.status_code == 200, answer.text
    return answer


def kind_of(answer: Any) -> str:
    kind: str = answer.headers.get("x-kvarn-cache-kind", answer.headers["x-kvarn-cache"])
    return kind


def taught(client: Any, **fields: Any) -> None:
    assert [kind_of(ask(client, text, **fields)) for text in (ASKED, *SAME[:2])] == ["miss"] * 3


def test_a_question_that_means_the_same_is_answered_once_it_is_known_to(server, project):
    taught(project)
    before = len(server.chat.submitted)
    answer = ask(project, SAME[2])
    assert kind_of(answer) == "semantic" and len(server.chat.submitted) == before
    assert answer.json()["choices"][0]["message"]["content"] == "Click here."
    assert 0.6 <= float(answer.headers["x-kvarn-cache-similarity"]) <= 1
    usage = answer.json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"]
    assert metric(project, "kvarn_response_cache_comparisons_total", model="tiny", result="same") >= 2
    assert kind_of(ask(project, ASKED)) == "exact"


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("how do I not reset my password", {}),
        ("how do I reset my password for Oslo", {}),
        ("how do I reset my 2 passwords", {}),
        (SAME[2], {"max_tokens": 5}),
        (SAME[2], {"cache": {"semantic": False}}),
        (SAME[2], {"cache": {"namespace": "other"}}),
        (SAME[2], {"response_format": {"type": "text"}}),
    ],
)
def test_another_question_or_another_context_asks_the_model(project, text, fields):
    taught(project)
    assert kind_of(ask(project, text, **fields)) == "miss"


def test_system_prompt_and_tool_results_are_part_of_the_context(project):
    taught(project)
    question = {"role": "user", "content": SAME[2]}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    for before in (
        [{"role": "system", "content": "Be brief."}],
        [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}],
        [
            {"role": "user", "content": "?"},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "x"},
        ],
    ):
        body = {"model": "tiny", "temperature": 0, "messages": [*before, question]}
        assert kind_of(project.post(CHAT, json=body)) == "miss"


def test_tokens_before_the_chat_and_other_fields_of_the_message_are_part_of_the_context(server, project):
    def ask_on(text: str, context: list[int]) -> Any:
        body = {"model": "tiny", "prompt": text, "context": context, "stream": False, "options": {"temperature": 0}}
        return project.post("/api/generate", json=body)

    assert [kind_of(ask_on(text, [5, 6])) for text in (ASKED, *SAME[:2])] == ["miss"] * 3
    assert kind_of(ask_on(SAME[2], [5, 6])) == "semantic"
    assert kind_of(ask_on(SAME[2], [7, 8])) == kind_of(ask_on(SAME[2], [])) == "miss"
    assert kind_of(ask(project, ASKED)) == "semantic"
    message = {"role": "user", "name": "ann", "content": ASKED}
    assert kind_of(project.post(CHAT, json=chat(temperature=0, messages=[message]))) == "miss"


@pytest.mark.parametrize(
    ("one", "other"),
    [("👍", "👎"), ("-5", "5"), ("<", ">"), ("C", "C++"), ("1.5", "15"), ("५ कि", "५ की"), ("5 %", "5")],
)
def test_answers_that_differ_in_a_sign_are_not_the_same(one, other):
    assert words_of(answered(one)) != words_of(answered(other))
    assert words_of(answered(one)) == words_of(answered(f'  "{one}".\n'))


def test_an_answer_that_is_too_old_is_a_miss_without_a_similarity(project):
    taught(project)
    answer = ask(project, SAME[2], cache={"s-maxage": 0})
    assert kind_of(answer) == "miss" and "x-kvarn-cache-similarity" not in answer.headers


def answered(text: str) -> Answer:
    return Answer(joined_deltas([packed_delta(ChoiceDelta(0, text=text))]), 0.0, 1.0, 1, 1, 0)


def test_answers_that_differ_are_learned_from_and_none_is_given(server, project):
    count = iter(range(100))
    server.chat.answer = lambda request, index: answer_text(f"Answer {next(count)}")
    taught(project)
    assert kind_of(ask(project, SAME[2])) == "miss"
    assert metric(project, "kvarn_response_cache_comparisons_total", model="tiny", result="different") >= 2


def test_no_other_project_and_no_exact_cache_gets_such_an_answer(server, project):
    taught(project)
    for name, mode in (("semantic-too", "semantic"), ("only-exact", "exact")):
        with server.add_tenant(name, response_cache=mode) as other:
            assert kind_of(ask(other, SAME[2])) == "miss"


def test_sampled_requests_get_none(project):
    taught(project)
    answer = project.post(CHAT, json=chat(SAME[2]))
    assert answer.headers["x-kvarn-cache"] == "bypass"
