"""The page of the HTTP API's operations, from the server's own OpenAPI document."""

from __future__ import annotations

import tempfile
from typing import Any

from kvarn.config.schema import KvarnConfig
from kvarn.gateway.app import create_app

INTRODUCTION = """\
# Operations

<!-- Generated from the server's OpenAPI document by `make docs`; do not edit by hand. -->

Every operation of the server, with its fields. To try them, open `/docs/api` on a running server. `/openapi.json` is
the document for programs. [HTTP API](api.md) tells what holds for all of them.

Fields in **bold** are needed. A field that is listed may still be refused by name:
[fields that are not supported](api.md#fields-that-are-not-supported).

Every operation may answer 401 `invalid_api_key`, 403 `insufficient_permissions`,
429 `rate_limit_exceeded` and 503 `draining`. Those for which a model computes may also answer 404 `model_not_found` and
503 `model_not_ready`. More errors stand at each group. [Errors by code](errors.md) explains them.
"""
GROUPS = (
    (
        "Answers",
        ("chat", "completions", "responses", "messages", "ollama"),
        "`context_length_exceeded`, `never_fits`, `unsupported_parameter`, `unsupported_value`, `queue_full`, "
        "`queue_timeout`, `overloaded`, `insufficient_quota`, `replica_lost`, `grammar_limit_exceeded`, "
        "`template_limit_exceeded`, `content_filter`; responses also `conversation_locked`, "
        "`response_in_progress`, `too_many_background`",
    ),
    (
        "Conversations",
        ("conversations", "sessions"),
        "`not_found`, `item_not_found`, `conversation_too_large`, `storage_full`",
    ),
    (
        "Embeddings, rank, moderation, tokens",
        ("embeddings", "rerank", "moderations", "tokens"),
        "`context_length_exceeded`, `model_not_supported`, `unsupported_value`",
    ),
    (
        "Files and batches",
        ("files", "batches"),
        "`not_found`, `conflict`, `request_too_large`, `storage_full`, `unsupported_media_type`, `invalid_form`",
    ),
    (
        "Vector stores",
        ("vector stores",),
        "`not_found`, `conflict`, `storage_full`, `vector_store_expired`",
    ),
    (
        "Containers of the code interpreter",
        ("containers",),
        "`not_found`, `request_too_large`, `storage_full`, `unsupported_value`",
    ),
    (
        "Quality",
        ("feedback", "evaluations", "rollouts"),
        "`not_found`, `request_not_found`, `set_too_large`, `rollout_ended`, `rollout_not_found`",
    ),
    (
        "Models and the server",
        ("models", "operation"),
        "`not_found`; `/ready` answers 503 with the progress of each model",
    ),
    (
        "Administration",
        ("administration", "organization"),
        "`not_found`, `conflict`, `unknown_parameter`, `no_room`, `not_here`, `database_read_only`",
    ),
)
METHODS = ("get", "post", "put", "patch", "delete")


def operations_page() -> str:
    """The whole of docs/reference/operations.md. Raises SystemExit where an operation belongs to no group."""
    with tempfile.TemporaryDirectory() as folder:
        document = create_app(KvarnConfig(data_dir=folder), {}).openapi()
    by_tag: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method in filter(methods.__contains__, METHODS):
            operation = methods[method]
            by_tag.setdefault(operation["tags"][0], []).append(_entry(method, path, operation, document))
    lines = [INTRODUCTION]
    for title, tags, errors in GROUPS:
        entries = [entry for tag in tags for entry in by_tag.pop(tag)]
        lines += [f"## {title}\n", f"Errors: {errors}.\n", *entries, ""]
    if by_tag:
        raise SystemExit(f"docs/tools/operations.py: no group has the operations of {', '.join(by_tag)}")
    return "\n".join(lines).rstrip() + "\n"


def _entry(method: str, path: str, operation: dict[str, Any], document: dict[str, Any]) -> str:
    """An item of a list: the operation, and below it its query and its body."""
    query = [
        _name(each["name"], bool(each.get("required")))
        for each in operation.get("parameters", [])
        if each["in"] == "query"
    ]
    lines = [f"* `{method.upper()} {path}`: {operation['summary']}."]
    for part, names in (("Query", query), ("Body", _fields(operation, document))):
        if names:
            lines.append(f"    * {part}: {', '.join(names)}")
    return "\n".join(lines)


def _fields(operation: dict[str, Any], document: dict[str, Any]) -> list[str]:
    """Names of the fields of an operation's body, those that are needed first."""
    contents = operation.get("requestBody", {}).get("content", {})
    schema = next((content["schema"] for content in contents.values() if "schema" in content), {})
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    needed = schema.get("required", [])
    names = sorted(schema.get("properties", {}), key=lambda name: (name not in needed, name))
    return [_name(name, name in needed) for name in names]


def _name(name: str, is_needed: bool) -> str:
    return f"**`{name}`**" if is_needed else f"`{name}`"
