"""File search: the model's queries find passages of vector stores, which its answer cites."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from asking import CHAT, chat, code_of, events_of, prompt_of
from published_schemas import check
from scripted_answers import called, cited

TRAINS = "# Trains\n\nTrains leave from platform nine. A ticket costs three crowns.\n"
INCLUDE: Any = ["file_search_call.results"]
ASK: dict[str, Any] = {"model": "tiny", "input": "What does a ticket cost?"}


@pytest.fixture
def tool(server, sdk) -> dict[str, Any]:
    made = sdk.vector_stores.create(name="trains")
    sdk.vector_stores.files.upload_and_poll(
        vector_store_id=made.id, file=("trains.md", TRAINS.encode()), poll_interval_ms=20
    )
    return {"type": "file_search", "vector_store_ids": [made.id]}


@pytest.fixture
def answered(scripted):
    scripted(called("file_search", queries=["price of a ticket"]), lambda prompt: f"Three {cited(prompt)} crowns.")


def test_an_answer_cites_the_passage_that_was_found(server, tool, answered, sdk):
    made = sdk.responses.create(**ASK, tools=[tool], include=INCLUDE)
    call, message = made.output
    assert (call.type, call.queries, call.status) == ("file_search_call", ["price of a ticket"], "completed")
    assert call.results[0].filename == "trains.md" and "three crowns" in call.results[0].text
    (note,) = message.content[0].annotations
    assert made.output_text == "Three crowns." and (note.type, note.index) == ("file_citation", 5)
    assert note.filename == "trains.md" and note.file_id == call.results[0].file_id
    fields = note.to_dict()
    assert TRAINS[fields["start"] : fields["end"]] in prompt_of(server) and "quoted data" in prompt_of(server)
    assert sdk.responses.retrieve(made.id).output[0].results is None
    assert sdk.responses.retrieve(made.id, include=INCLUDE).output[0].results == call.results
    check("Response", made.to_dict())


def test_a_stream_tells_of_the_search_and_the_citation(tool, answered, client):
    events = events_of(client.post("/v1/responses", json={**ASK, "tools": [tool], "stream": True}))
    types = [event["type"] for event in events]
    begin = types.index("response.file_search_call.in_progress")
    assert types[begin : begin + 3] == [
        f"response.file_search_call.{each}" for each in ("in_progress", "searching", "completed")
    ]
    (added,) = [event for event in events if event["type"] == "response.output_text.annotation.added"]
    assert (
        added["annotation"]["filename"] == "trains.md"
        and "[" not in events[-1]["response"]["output"][1]["content"][0]["text"]
    )
    for event in events:
        check("ResponseStreamEvent", event)
    assert events_of(client.get(f"/v1/responses/{events[-1]['response']['id']}?stream=true")) == events


def test_a_later_turn_may_cite_what_an_earlier_one_found(tool, answered, scripted, sdk):
    made = sdk.responses.create(**ASK, tools=[tool])
    scripted(lambda prompt: f"As I said{cited(prompt)}.")
    again = sdk.responses.create(model="tiny", input="Sure?", previous_response_id=made.id, tools=[tool])
    assert again.output_text == "As I said." and len(again.output[0].content[0].annotations) == 1


def test_in_a_chat_citations_stand_beside_the_text(tool, answered, sdk):
    message = sdk.chat.completions.create(**chat("Cost?", tools=[tool])).choices[0].message.to_dict()
    assert message["content"] == "Three crowns."
    assert message["annotations"][0]["file_citation"]["filename"] == "trains.md"
    assert message["tool_executions"][0]["results"][0]["filename"] == "trains.md"


def test_a_search_that_is_forced_takes_place_and_finds_nothing_elsewhere(server, tool, scripted, sdk):
    other = sdk.vector_stores.create()
    scripted('{"queries": ["ticket"]}}\n</tool_call>', "Nothing.")
    tool = {**tool, "vector_store_ids": [other.id]}
    made = sdk.responses.create(**ASK, tools=[tool], tool_choice={"type": "file_search"}, include=INCLUDE)
    assert made.output[0].results == [] and "Nothing was found." in prompt_of(server)


def test_a_store_that_is_not_there_is_refused(client, sdk):
    with pytest.raises(openai.NotFoundError) as missing:
        sdk.responses.create(**ASK, tools=[{"type": "file_search", "vector_store_ids": ["vs_none"]}])
    assert missing.value.code == "vector_store_not_found"
    assert code_of(client.post(CHAT, json=chat(tools=[{"type": "file_search"}])))[0] == 400
