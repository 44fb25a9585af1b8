"""Requests made from OpenAPI documents, our own and OpenAI's: no answer is a 500, or other than the document says."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable

from lazy_modules import LazyModule
from profiles import effort
from published import plain_routes, published, served_part

EXAMPLES = effort(1, 20)
"""Requests for each operation."""
schemathesis = LazyModule("schemathesis")


def run(operation, base_url, mode="positive", ids=None):
    """Send made-up requests for an operation, about the objects of `ids` where it names one, and check the answers."""
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks as openapi

    checks = [not_a_server_error, openapi.status_code_conformance]
    checks += [openapi.content_type_conformance, openapi.response_schema_conformance]

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=schemathesis.GenerationMode(mode)))
    def attempt(case: Any) -> None:
        if isinstance(case.body, dict) and "model" in case.body:
            case.body["model"] = "vec" if "embeddings" in operation.path else "tiny"
        for name in set(case.path_parameters or {}) & set(ids or {}):
            case.path_parameters[name] = ids[name]
        response = case.call(base_url=base_url, timeout=20)
        case.validate_response(response, checks=checks)

    attempt()


def operations(document):
    schema = schemathesis.openapi.from_dict(document)
    return [result.ok() for result in schema.get_all_operations()]


def made_objects(server) -> dict[str, str]:
    """One of each kind of object, by the name its id has in paths."""
    client = server.client()

    def make(path, body=None, **more):
        answer = client.post(f"/v1{path}", json=body, **more)
        assert answer.status_code in (200, 201), (path, answer.text)
        return answer.json()

    message = {"role": "user", "content": "Hello"}
    chat = {"model": "tiny", "messages": [message], "max_tokens": 4}
    line = json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": chat})
    file = make("/files", files={"file": ("in.jsonl", f"{line}\n")}, data={"purpose": "batch"})["id"]
    conversation = make("/conversations", {"items": [{"type": "message", **message}]})["id"]
    batch = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    project = make("/organization/projects", {"name": "made"})["id"]
    limits = client.get(f"/v1/organization/projects/{project}/rate_limits").json()["data"]
    user = make(
        "/organization/users", {"email": f"made-{uuid.uuid4().hex}@example.org", "role": "reader", "name": "Made"}
    )["id"]
    make(f"/organization/projects/{project}/users", {"user_id": user, "role": "member"})
    store = make("/vector_stores", {"name": "made", "file_ids": [file]})["id"]
    return {
        "file_id": file,
        "vector_store_id": store,
        "conversation_id": conversation,
        "item_id": client.get(f"/v1/conversations/{conversation}/items").json()["data"][0]["id"],
        "batch_id": make("/batches", batch)["id"],
        "response_id": make("/responses", {"model": "tiny", "input": "Hello", "max_output_tokens": 16})["id"],
        "completion_id": make("/chat/completions", chat | {"store": True})["id"],
        "project_id": project,
        "api_key_id": make(f"/organization/projects/{project}/api_keys", {"name": "made"})["id"],
        "service_account_id": make(f"/organization/projects/{project}/service_accounts", {"name": "made"})["id"],
        "user_id": user,
        "key_id": make("/organization/admin_api_keys", {"name": "made"})["id"],
        "rate_limit_id": limits[0]["id"],
        "model": "tiny",
    }


@pytest.mark.timeout(900)  # a minute of an idle machine's, several of a busy one
@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_nothing_made_from_our_own_document_is_a_500_or_answered_otherwise_than_it_says(server, mode):
    from schemathesis.core.errors import InvalidSchema

    document = server.client().get("/openapi.json").json()
    ids = made_objects(server) if mode == "positive" else {}
    tried = 0
    for operation in operations(document):
        try:  # objects that exist are read only: what changes or deletes them is tried on others
            run(operation, server.url, mode, ids if operation.method == "get" else None)
        except (Unsatisfiable, InvalidSchema):
            # What takes nothing, or any text, cannot be asked wrongly; and some bodies are wrong in ways that are too
            # long to be made up.
            assert mode == "negative"
        else:
            tried += 1
    assert tried > 60


def test_answers_keep_the_published_schemas(server):
    from schemathesis.core.failures import FailureGroup

    document = published()
    own = server.client().get("/openapi.json").json()
    found = operations(served_part(document, plain_routes(own["paths"])))
    assert len(found) > 40
    ids = made_objects(server)
    for_last = [each for each in found if each.method.upper() == "DELETE" or each.path.endswith(("archive", "cancel"))]
    failures = []
    for operation in [each for each in found if each not in for_last] + for_last:
        try:
            run(operation, f"{server.url}/v1", ids=ids)
        except (AssertionError, FailureGroup) as error:
            failures.append(f"{operation.label}: {error}")
    assert not failures, "\n\n".join(failures)[:8000]
