"""The code interpreter and its containers as OpenAI's client uses them."""

from __future__ import annotations

import re
from typing import Any

import openai
import pytest

from asking import events_of, prompt_of
from kvarn.sandbox.bubblewrap import find_bubblewrap
from kvarn.sandbox.errors import NoSandboxError
from printed_commands import ROOT
from published_schemas import check
from scripted_answers import called

CODE: Any = {"type": "code_interpreter", "container": {"type": "auto"}}
ASK: dict[str, Any] = {"model": "tiny", "input": "Compute."}


@pytest.fixture(autouse=True)
def _sandbox() -> None:
    try:
        find_bubblewrap()
    except NoSandboxError as error:
        pytest.skip(str(error))


def test_the_model_runs_code_and_its_files_can_be_fetched(server, scripted, sdk):
    given = sdk.files.create(file=("in.txt", b"6 7"), purpose="assistants")
    code = "a, b = map(int, open('/mnt/data/in.txt').read().split())\nopen('out.png', 'wb').write(b'x' * a)\na * b"
    scripted(called("code_interpreter", code=code), "It is 42.")
    container: Any = {"type": "auto", "file_ids": [given.id]}
    tool: Any = {"type": "code_interpreter", "container": container}
    made = sdk.responses.create(**ASK, tools=[tool], include=["code_interpreter_call.outputs"])
    call, message = made.output
    assert (call.type, call.status, call.code) == ("code_interpreter_call", "completed", code)
    assert call.outputs[0].logs == "42\n" and message.content[0].text == "It is 42."
    assert "42" in prompt_of(server) and "/mnt/data/out.png (6 bytes)" in prompt_of(server)
    files = {each.path: each for each in sdk.containers.files.list(call.container_id)}
    assert {path: (each.source, each.bytes) for path, each in files.items()} == {
        "/mnt/data/in.txt": ("user", 3),
        "/mnt/data/out.png": ("assistant", 6),
    }
    written = files["/mnt/data/out.png"]
    assert call.outputs[1].url == f"/v1/containers/{call.container_id}/files/{written.id}/content"
    assert sdk.containers.files.content.retrieve(written.id, container_id=call.container_id).read() == b"x" * 6
    scripted(called("code_interpreter", code="a"), "Six.")
    again = sdk.responses.create(**ASK, tools=[{"type": "code_interpreter", "container": call.container_id}])
    assert again.output[0].outputs is None and "6" in prompt_of(server)  # outputs are told to those who ask


def test_two_calls_of_one_turn_have_one_container(scripted, sdk):
    scripted(called("code_interpreter", code="1 + 1") + called("code_interpreter", code="2 + 2"), "Done.")
    made = sdk.responses.create(**ASK, tools=[CODE], include=["code_interpreter_call.outputs"])
    assert [call.outputs[0].logs for call in made.output[:2]] == ["2\n", "4\n"]
    assert made.output[0].container_id == made.output[1].container_id


def test_an_answer_that_names_a_file_cites_it(scripted, sdk):
    code = "open('a.csv', 'w').write('1'); open('a.csv.bak', 'w').write('2')"
    answer = "Here: [data](sandbox:/mnt/data/a.csv), once more /mnt/data/a.csv.bak, not /mnt/data/b.csv."
    scripted(called("code_interpreter", code=code), answer)
    made = sdk.responses.create(**ASK, tools=[CODE])
    call, message = made.output
    files = {each.path: each.id for each in sdk.containers.files.list(call.container_id)}
    cited = message.content[0].annotations
    assert [(each.type, each.filename, answer[each.start_index : each.end_index]) for each in cited] == [
        ("container_file_citation", "a.csv", "sandbox:/mnt/data/a.csv"),
        ("container_file_citation", "a.csv.bak", "/mnt/data/a.csv.bak"),
    ]
    assert [each.file_id for each in cited] == [files["/mnt/data/a.csv"], files["/mnt/data/a.csv.bak"]]
    assert sdk.responses.retrieve(made.id) == made


def test_the_guides_example_runs_as_printed(server, scripted, tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs/guides/code_interpreter.md").read_text()
    (printed,) = re.findall(r"```python\n(.*?)```", page, re.S)
    (tmp_path / "sales.csv").write_text("may,3\njune,5\n")
    monkeypatch.chdir(tmp_path)
    code = "open('plot.png', 'wb').write(open('sales.csv', 'rb').read())"
    scripted(called("code_interpreter", code=code), "June.")
    exec(printed.replace("http://127.0.0.1:8000", server.url).replace("kvarn-demo", "tiny"), {})
    said = capsys.readouterr().out
    assert "completed open('plot.png'" in said
    assert "/mnt/data/plot.png assistant 13" in said and "/mnt/data/sales.csv user 13" in said


def test_a_stream_tells_of_the_code(scripted, client):
    scripted(called("code_interpreter", code="1/0"), "I cannot.")
    events = events_of(client.post("/v1/responses", json={**ASK, "tools": [CODE], "stream": True}))
    types = [event["type"].removeprefix("response.") for event in events]
    assert types[3:8] == [
        "code_interpreter_call.in_progress",
        "code_interpreter_call_code.delta",
        "code_interpreter_call_code.done",
        "code_interpreter_call.interpreting",
        "output_item.done",
    ]
    done = next(each for each in events if each["type"] == "response.output_item.done")
    assert done["item"]["status"] == "failed" and done["item"]["container_id"].startswith("cntr_")
    for event in events:
        check("ResponseStreamEvent", event)


def test_containers_are_made_listed_filled_and_deleted(sdk):
    uploaded = sdk.files.create(file=("a.txt", b"abc"), purpose="assistants")
    made = sdk.containers.create(
        name="mine", file_ids=[uploaded.id], memory_limit="1g", expires_after={"anchor": "last_active_at", "minutes": 5}
    )
    assert (made.object, made.name, made.status, made.memory_limit) == ("container", "mine", "running", "1g")
    assert made.expires_after.minutes == 5 and made.network_policy.type == "disabled"
    check("ContainerResource", made.to_dict())
    assert sdk.containers.retrieve(made.id).id == made.id
    assert [each.id for each in sdk.containers.list(name="mine")] == [made.id]
    copied = sdk.containers.files.create(made.id, file=("b.txt", b"de"))
    assert (copied.object, copied.path, copied.bytes) == ("container.file", "/mnt/data/b.txt", 2)
    again = sdk.containers.files.create(made.id, file_id=uploaded.id)
    check("ContainerFileResource", again.to_dict())
    listed = sdk.containers.files.list(made.id, order="asc")
    assert {each.path for each in listed} == {"/mnt/data/a.txt", "/mnt/data/b.txt"}
    assert sdk.containers.files.retrieve(copied.id, container_id=made.id).to_dict() == copied.to_dict()
    sdk.containers.files.delete(copied.id, container_id=made.id)
    assert [each.id for each in sdk.containers.files.list(made.id)] == [again.id]
    assert copied.id not in [each.id for each in sdk.files.list()]
    with pytest.raises(openai.NotFoundError):
        sdk.files.retrieve(again.id)  # it is seen in its container alone
    sdk.containers.delete(made.id)
    for gone in (lambda: sdk.containers.retrieve(made.id), lambda: sdk.containers.files.list(made.id)):
        with pytest.raises(openai.NotFoundError, match="no container"):
            gone()


@pytest.mark.parametrize(
    ("container", "says"),
    [
        ("cntr_none", "no container"),
        ({"type": "auto", "network_policy": {"type": "allowlist", "allowed_domains": ["a.b"]}}, "code has no network"),
        ({"type": "auto", "memory_limit": "64g"}, "sandbox.code_memory_mib"),
        ({"type": "auto", "file_ids": ["file-none"]}, "no file"),
        ({"type": "auto", "colour": 1}, "colour"),
    ],
)
def test_containers_that_are_no_good_are_refused_before_the_model_is_asked(sdk, container, says):
    with pytest.raises((openai.BadRequestError, openai.NotFoundError), match=says):
        sdk.responses.create(**ASK, tools=[{"type": "code_interpreter", "container": container}])


def test_files_that_a_container_has_no_room_for_are_refused(sdk):
    made = sdk.containers.create(name="full")
    with pytest.raises(openai.APIStatusError, match="at most 64 MiB together") as refused:
        sdk.containers.files.create(made.id, file=("a.bin", bytes(65 * 2**20)))
    assert refused.value.status_code == 413
    with pytest.raises(openai.BadRequestError, match="file_id"):
        sdk.containers.files.create(made.id)
