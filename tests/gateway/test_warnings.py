"""What is ignored of a request is named: in a header of the answer, in the log, in the output of a batch."""

from __future__ import annotations

import logging
from urllib.parse import unquote

import pytest

from batch_jobs import await_end, chat_line, outputs, send

HEADER = "x-kvarn-warning"
HELLO = [{"role": "user", "content": "Hej"}]
PREDICTED = {"prediction": {"type": "content", "content": "Hej"}}
VERBOSE = {"text": {"verbosity": "low"}}


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/v1/chat/completions", {"messages": HELLO, **PREDICTED}, "ignored 'prediction'"),
        ("/v1/chat/completions", {"messages": HELLO, **PREDICTED, "stream": True}, "ignored 'prediction'"),
        ("/v1/responses", {"input": "Hej", **VERBOSE}, "ignored 'text.verbosity'"),
        ("/v1/responses", {"input": "Hej", **VERBOSE, "background": True}, "ignored 'text.verbosity'"),
        ("/v1/responses", {"input": "Hej", "reasoning": {"effort": "low"}}, "ignored the reasoning effort"),
        ("/v1/responses", {"input": "Hej", "text": {"verbosity": "high"}}, "ignored 'text.verbosity'"),
        ("/v1/completions", {"prompt": "Hej", "temprature": 0}, "'temprature', did you mean 'temperature'?"),
        ("/v1/embeddings", {"model": "vec", "input": "Hej", "colour": 1}, "'colour'"),
        ("/v1/moderations", {"model": "omni-moderation-latest", "input": "Hej", "colour": 1}, "'colour'"),
        ("/v1/rerank", {"model": "vec", "query": "a", "documents": ["b"], "colour": 1}, "'colour'"),
        ("/tokenize", {"prompt": "Hej", "colour": 1}, "'colour'"),
    ],
)
def test_what_is_ignored_is_named_in_a_header_and_in_the_log(client, wait_for, caplog, path, body, named):
    caplog.set_level(logging.INFO, "kvarn.gateway")
    answer = client.post(path, json={"model": "tiny", **body})
    assert answer.status_code == 200, answer.text
    assert named in answer.headers[HEADER]

    def logged() -> list[str]:
        return [record.warnings for record in caplog.records if hasattr(record, "warnings")]

    told = answer.headers[HEADER]
    in_log = "ignored unknown field" if told.startswith("ignored unknown field") else told  # no text of the client's
    wait_for(lambda: logged() == [in_log], "the log line, written after the answer")


def test_names_that_a_client_makes_up_stay_apart(client):
    names = ["a, b", 'c"', "d'", "e'\"", "f\\", "g%2C", "smörgås", "tools[1]"]
    answer = client.post("/v1/completions", json={"model": "tiny", "prompt": "a"} | dict.fromkeys(names, 1))
    told = answer.headers["x-kvarn-ignored"].split(", ")
    assert answer.status_code == 200 and sorted(map(unquote, told)) == sorted(names) and "tools[1]" in told
    answer = client.get("/v1/models", params={"h,'": 1, "i": 2})
    assert answer.headers["x-kvarn-ignored"] == "h%2C%27, i"


def test_nothing_is_said_where_nothing_is_ignored(client):
    answer = client.post("/v1/chat/completions", json={"model": "tiny", "messages": HELLO})
    assert answer.status_code == 200 and HEADER not in answer.headers


def test_administration_refuses_what_it_does_not_know(client):
    answer = client.post("/v1/organization/projects", json={"name": "a", "colour": "red"})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "colour"
    answer = client.get("/v1/organization/projects?colour=red")
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "colour"


def test_the_output_of_a_batch_names_what_was_ignored(runner, wait_for):
    lines = [chat_line(0, **PREDICTED, colour="red"), chat_line(1)]
    with runner.client() as client:
        found = outputs(client, await_end(client, send(client, lines), wait_for))
    warnings = found["r0"]["response"]["warnings"]
    assert [warning.split(",")[0] for warning in warnings] == ["ignored unknown field 'colour'", "ignored 'prediction'"]
    assert found["r0"]["response"]["status_code"] == 200 and "warnings" not in found["r1"]["response"]
