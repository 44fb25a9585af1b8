"""Tools that run here, in responses: what the model calls is run, and its result goes back to it."""

from __future__ import annotations

import json
from typing import Any

from asking import code_of, events_of, metric, prompt_of
from fake_replica import write_checkpoint
from gateway_fixtures import make_server, running
from published_schemas import check
from scripted_answers import called, script

CLOCK: Any = {"type": "clock"}
SUM: Any = {"type": "calculator"}
ADD: Any = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": False}
ASK: dict[str, Any] = {"model": "tiny", "input": "What is 6 * 7?"}


def test_a_call_is_run_and_the_model_answers_with_its_result(server, scripted, sdk):
    scripted("Let me see." + called("calculator", expression="6 * 7"), "It is 42.")
    made = sdk.responses.create(**ASK, tools=[SUM])
    call, message = made.output[1:]
    assert (call.type, call.server_label, call.name, call.status) == ("mcp_call", "kvarn", "calculator", "completed")
    assert json.loads(call.arguments) == {"expression": "6 * 7"} and call.output == "42" and call.error is None
    assert made.output_text == "Let me see.It is 42." and message.status == "completed"
    assert "42" in prompt_of(server) and "quoted data" in prompt_of(server)
    tokens = [len(each.prompt_token_ids) for each in server.chat.submitted]
    assert made.usage is not None and made.usage.input_tokens == sum(tokens)
    assert made.to_dict()["tools"] == [SUM]
    assert sdk.responses.retrieve(made.id) == made


TEMPLATE = (
    "{{ bos_token }}{% if tools %}<|system|>tools: {{ tools | tojson }}\n{% endif %}"
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}{% if message.content or not loop.first %}{{ '\n' }}{% endif %}"
    "<tool_call>{{ '\n' }}{{ {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}{{ '\n' }}"
    "</tool_call>{% endfor %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def test_each_prompt_goes_on_from_the_one_before_and_its_answer(tmp_path):
    server = make_server(write_checkpoint(tmp_path, TEMPLATE))
    with running(server), server.sdk() as sdk:
        both = f"{called('calculator', expression='6 * 7')}\n{called('clock', time_zone='UTC')}"
        script(server, f"Let me see.\n{both}", called("clock"), "It is 42.", "Yes.")
        made = sdk.responses.create(**ASK, tools=[SUM, CLOCK])
        sdk.responses.create(model="tiny", input="Sure?", previous_response_id=made.id, tools=[SUM, CLOCK])
        prompts = [bytes(min(each, 255) for each in request.prompt_token_ids) for request in server.chat.submitted]
    said = [f"Let me see.\n{both}", called("clock"), "It is 42."]
    for prompt, answer, following in zip(prompts, said, prompts[1:], strict=False):
        assert following.startswith(prompt + answer.encode())


def test_a_stream_tells_of_the_call_and_is_replayed_as_it_was(server, scripted, client):
    scripted(called("calculator", expression="6 * 7"), "It is 42.")
    events = events_of(client.post("/v1/responses", json={**ASK, "tools": [SUM], "stream": True}))
    types = [event["type"] for event in events]
    assert types[:8] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.mcp_call.in_progress",
        "response.mcp_call_arguments.delta",
        "response.mcp_call_arguments.done",
        "response.mcp_call.completed",
        "response.output_item.done",
    ]
    assert types[-1] == "response.completed" and "model_view" not in str(events)
    for event in events:
        response = {**event["response"], "tools": []} if "response" in event else None  # the tool's type is ours
        check("ResponseStreamEvent", event if response is None else {**event, "response": response})
    again = events_of(client.get(f"/v1/responses/{events[-1]['response']['id']}?stream=true"))
    assert again == events


def test_calls_of_one_turn_run_and_a_failure_is_a_result(server, scripted, sdk):
    scripted(called("calculator", expression="1/0") + called("clock", time_zone="Mars"), "I cannot.")
    made = sdk.responses.create(**ASK, tools=[SUM, CLOCK])
    first, second = made.output[:2]
    assert (first.status, second.status) == ("failed", "failed")
    assert first.error.type == "mcp_tool_execution_error" and "division by zero" in str(first.error)
    assert made.status == "completed" and "division by zero" in prompt_of(server) and "'Mars'" in prompt_of(server)


def test_a_call_of_the_clients_own_function_ends_the_loop(server, scripted, sdk):
    scripted(called("calculator", expression="6 * 7") + called("add", a=1), "Done.")
    made = sdk.responses.create(**ASK, tools=[SUM, ADD])
    kinds = [item.type for item in made.output]
    assert sorted(kinds) == ["function_call", "mcp_call"] and made.status == "completed"
    own = next(item for item in made.output if item.type == "function_call")
    result: Any = {"type": "function_call_output", "call_id": own.call_id, "output": "three"}
    again = sdk.responses.create(model="tiny", input=[result], previous_response_id=made.id, tools=[SUM, ADD])
    assert again.output_text == "Done." and "42" in prompt_of(server) and "three" in prompt_of(server)


def test_a_forced_tool_is_called_once_and_then_the_model_answers(server, scripted, sdk):
    opening = '{"expression": "2 + 2"}}\n</tool_call>'
    scripted(opening, "Four.")
    made = sdk.responses.create(**ASK, tools=[SUM, CLOCK], tool_choice={"type": "calculator"})
    assert [item.type for item in made.output] == ["mcp_call", "message"]
    assert made.output[0].output == "4" and made.output_text == "Four."


def test_limits_let_the_model_answer_without_tools(server, scripted, sdk):
    scripted(called("clock"), called("clock"), "Enough.")
    made = sdk.responses.create(**ASK, tools=[CLOCK], max_tool_calls=1)
    assert [item.type for item in made.output] == ["mcp_call", "message"]
    assert "asked to answer without tools" in made.to_dict()["warnings"][0]
    assert "clock" in prompt_of(server, 0) and "tools:" not in prompt_of(server, 1)


def test_each_call_is_counted_priced_and_audited(server, scripted, client):
    before = metric(client, "kvarn_tool_calls_total", type="clock", outcome="completed")
    scripted(called("clock"), "Noon.")
    client.post("/v1/responses", json={**ASK, "tools": [CLOCK]})
    assert metric(client, "kvarn_tool_calls_total", type="clock", outcome="completed") == before + 1
    entry = client.get("/v1/organization/audit_logs?event_types[]=tool.called&limit=1").json()["data"][0]
    assert entry["tool.called"]["data"]["tool"] == "clock"
    assert entry["tool.called"]["data"]["status"] == "completed"


def test_what_a_key_or_a_project_may_not_use_is_refused(server):
    server.widen(32_768)
    restricted = server.add_tenant("no-clock", project_tools=("calculator",))
    with restricted as client:
        refused = client.post("/v1/responses", json={**ASK, "tools": [CLOCK]})
        assert code_of(refused) == (403, "insufficient_permissions") and "tools:clock" in refused.text
        assert client.post("/v1/responses", json={**ASK, "tools": [SUM]}).status_code == 200


def test_a_function_with_the_name_of_a_tool_is_refused(client):
    clock = {**ADD, "name": "clock"}
    refused = client.post("/v1/responses", json={**ASK, "tools": [clock, CLOCK]})
    assert code_of(refused) == (400, "tool_name_taken")


def test_in_the_background_as_well(server, scripted, sdk, wait_for):
    scripted(called("calculator", expression="6 * 7"), "It is 42.")
    queued = sdk.responses.create(**ASK, tools=[SUM], background=True)
    wait_for(lambda: sdk.responses.retrieve(queued.id).status == "completed", "the response to end")
    made = sdk.responses.retrieve(queued.id)
    assert [item.type for item in made.output] == ["mcp_call", "message"]


def test_items_that_a_client_keeps_itself_are_taken_back(server, scripted, sdk):
    scripted(called("calculator", expression="6 * 7"), "It is 42.")
    made = sdk.responses.create(**ASK, tools=[SUM], store=False)
    said: Any = [{"role": "user", "content": "6 * 7?"}, *[item.to_dict() for item in made.output]]
    scripted("Yes.")
    sdk.responses.create(model="tiny", input=[*said, {"role": "user", "content": "Sure?"}], store=False)
    assert "42" in prompt_of(server) and prompt_of(server).endswith("<|user|>Sure?<|assistant|>")


def test_count_of_tokens_has_the_tools(client):
    plain = client.post("/v1/responses/input_tokens", json=ASK).json()["input_tokens"]
    assert client.post("/v1/responses/input_tokens", json={**ASK, "tools": [CLOCK]}).json()["input_tokens"] > plain
