"""Our own OpenAPI document says what the routes read, and what they answer when they refuse."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

import jsonschema_rs
import pytest

from kvarn.gateway import routes
from kvarn.gateway.middleware import PUBLIC
from kvarn.gateway.openapi import JsonRoute
from kvarn.gateway.query import QueryModel, check_query
from published import plain_routes, published, served_part

IGNORE_THE_QUERY = {
    "chat.create_chat_completion",
    "chat.render_chat_completion",
    "completions.create_completion",
    "encoders.create_embeddings",
    "ollama.ollama_blob",
    "ollama.ollama_change",
    "ollama.ollama_chat",
    "ollama.ollama_embed",
    "ollama.ollama_embeddings",
    "ollama.ollama_generate",
    "ollama.ollama_pull",
    "ollama.ollama_running",
    "ollama.ollama_show",
    "ollama.ollama_tags",
    "ollama.ollama_version",
    "operation.health",
    "operation.load",
    "operation.favicon",
    "operation.metrics",
    "operation.root",
    "operation.version",
    "messages.count_message_tokens",
    "messages.create_message",
    "models.get_model",
    "encoders.create_moderation",
    "encoders.classify",
    "encoders.pool",
    "encoders.rerank",
    "encoders.rerank_as_cohere",
    "encoders.score",
    "responses.compact_response",
    "responses.count_tokens",
    "responses.create_response",
    "tokens.detokenize",
    "tokens.tokenize",
}
"""Operations of models, where clients add `beta=true` and the like, and probes."""


@pytest.fixture(scope="module")
def document(shared_server: Any) -> dict[str, Any]:
    with shared_server.client() as client:
        made: dict[str, Any] = client.get("/openapi.json").json()
    return made


def modules() -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages(routes.__path__, f"{routes.__name__}."):
        if not found.ispkg:
            yield import_module(found.name)


def own_routes() -> Iterator[tuple[str, JsonRoute]]:
    """Every route there is, with its name."""
    for module in modules():
        for route in module.router.routes if hasattr(module, "router") else ():
            if isinstance(route, JsonRoute):
                yield f"{module.__name__.rpartition('.')[2]}.{route.endpoint.__name__}", route


def described(document: dict[str, Any], path: str, method: str = "get") -> dict[str, dict[str, Any]]:
    """An operation's query parameters by name."""
    parameters = document["paths"][path][method].get("parameters", [])
    return {each["name"]: each for each in parameters if each["in"] == "query"}


def test_routes_check_their_query_unless_it_is_ignored():
    names, ignoring = set(), set()
    for name, route in own_routes():
        names.add(name)
        calls = [dependency.call for dependency in route.dependant.dependencies]
        models = [field.field_info.annotation for field in route.dependant.query_params]
        assert all(isinstance(model, type) and issubclass(model, QueryModel) for model in models), name
        if check_query not in calls:
            assert not models, name
            ignoring.add(name)
    assert ignoring == IGNORE_THE_QUERY
    assert len(names) > 70


def test_no_route_reads_its_query_by_hand():
    for module in modules():
        assert "query_params" not in inspect.getsource(module), module.__name__


def test_the_document_has_the_parameters_of_the_routes(document):
    files = described(document, "/v1/files")
    assert list(files) == ["limit", "after", "order", "purpose", "page", "after_id", "before_id", "ids"]
    limit = {"type": "integer", "minimum": 1, "maximum": 10_000, "default": 10_000}
    assert files["limit"]["schema"].items() >= limit.items()
    order = {"type": "string", "enum": ["asc", "desc"], "default": "desc"}
    assert files["order"]["schema"].items() >= order.items()
    assert files["after"]["schema"]["type"] == "string" and "default" not in files["after"]["schema"]
    usage = described(document, "/v1/organization/usage/completions")
    assert usage["start_time"]["required"] and usage["bucket_width"]["schema"]["default"] == "1d"
    assert "service_tier" in usage["group_by"]["schema"]["items"]["enum"]
    assert described(document, "/v1/chat/completions")["metadata"]["style"] == "deepObject"
    assert list(described(document, "/v1/conversations/{conversation_id}/items", "post")) == ["include"]
    assert list(described(document, "/v1/organization/tenants/{tenant_id}", "delete")) == ["erase_usage"]
    assert described(document, "/v1/files/{file_id}") == {}
    items = document["paths"]["/v1/conversations/{conversation_id}/items"]["post"]
    assert [each["name"] for each in items["parameters"]] == ["conversation_id", "include"] and items["requestBody"]


def test_the_document_has_every_parameter_that_the_published_one_has(document):
    """By the same name, of the same type, with the same default."""
    theirs = served_part(published(), plain_routes(document["paths"]))
    ours = {path.removeprefix("/v1"): path for path in document["paths"]}
    checked = 0
    for path, operations in theirs["paths"].items():
        for method, operation in operations.items():
            if path not in ours or method == "parameters":
                continue
            found = described(document, ours[path], method)
            for wanted in operation.get("parameters", []):
                if wanted["in"] != "query":
                    continue
                own, schema = found[wanted["name"]], wanted["schema"]
                assert own.get("required", False) == wanted.get("required", False), (path, wanted["name"])
                name = own["schema"].get("$ref", "").rpartition("/")[2]
                named = document["components"]["schemas"][name] if name else own["schema"]
                if "$ref" not in schema:
                    assert named["type"] == schema["type"], (path, wanted["name"])
                if schema.get("default") is not None and wanted["name"] != "limit":
                    assert own["schema"].get("default") == schema["default"], (path, wanted["name"])
                checked += 1
    assert checked > 50


def test_every_operation_has_its_errors(document, client):
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert {"200", "4XX", "5XX"} <= operation["responses"].keys(), path
            content = operation["responses"]["200"]["content"]
            assert content and all(kind["schema"] for kind in content.values()), path
            assert operation["security"] == ([] if path in PUBLIC else [{"bearer": []}, {"x-api-key": []}]), path
    assert document["components"]["securitySchemes"].keys() == {"bearer", "x-api-key"}
    schemas = document["components"]["schemas"]
    for path, shape in (("/v1/responses", "ErrorResponse"), ("/v1/messages", "AnthropicErrorResponse")):
        refused = document["paths"][path]["post"]["responses"]["4XX"]["content"]["application/json"]["schema"]
        assert refused == {"$ref": f"#/components/schemas/{shape}"}
        answer = client.post(path, json={"model": 1})
        assert answer.status_code == 400
        jsonschema_rs.Draft202012Validator(schemas[shape]).validate(answer.json())


def test_every_schema_is_sound(document):
    assert document["openapi"].startswith("3.1")
    for name, schema in document["components"]["schemas"].items():
        assert jsonschema_rs.meta.is_valid(schema), name
    for path, operations in document["paths"].items():
        for operation in operations.values():
            parameters = operation.get("parameters", [])
            assert len({(each["name"], each["in"]) for each in parameters}) == len(parameters), path
            for parameter in parameters:
                assert jsonschema_rs.meta.is_valid(parameter["schema"]), (path, parameter["name"])
