"""OpenAI's published API document, fitted to what it forgets. It is not part of this repository.

`OPENAI_API_DOCUMENT` names the file; without it, `openapi.yaml` in the repository's root.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WHERE = (
    "get openapi.yaml from github.com/openai/openai-openapi and name it in OPENAI_API_DOCUMENT (see `make conformance`)"
)


OWN_CHANGES = [
    f"{thing}.{change}" for thing in ("organization", "budget") for change in ("created", "updated", "deleted")
]


def document_path() -> Path:
    """Where the document should be."""
    return Path(os.environ.get("OPENAI_API_DOCUMENT", ROOT / "openapi.yaml"))


def published() -> dict[str, Any]:
    """The document; the test that asks is skipped where there is none."""
    if not document_path().exists():
        pytest.skip(f"OpenAI's API document is not here: {WHERE}")
    return _load(document_path())


@cache
def _load(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    # Keys that carry a query string are no paths.
    paths = {path: item for path, item in document["paths"].items() if "?" not in path}
    error = {"description": "Error", "content": _json({"$ref": "#/components/schemas/ErrorResponse"})}
    for item in paths.values():
        for method, operation in item.items():
            if method in ("get", "post", "put", "patch", "delete"):
                # Hardly any refusal is declared, and those that are lack the envelope that all have in truth.
                answers = operation["responses"]
                operation["responses"] = {code: answers[code] for code in answers if not code.startswith("4")}
                operation["responses"]["4XX"] = error
    document["paths"] = paths
    schemas = document["components"]["schemas"]
    # Acts that only a server with several organisations of its own knows.
    schemas["AuditLogEventType"]["enum"] += OWN_CHANGES
    # What the document contradicts elsewhere, or in its own examples.
    schemas["OpenAIFile"]["properties"]["purpose"]["enum"].append("evals")
    schemas["ChatCompletionResponseMessage"]["properties"]["role"]["enum"] += ["user", "system", "developer", "tool"]
    paths["/files/{file_id}/content"]["get"]["responses"]["200"]["content"] = {"application/octet-stream": {}}
    paths["/responses/{response_id}"]["get"]["responses"]["200"]["content"]["text/event-stream"] = {}
    _drop_discriminators(schemas)
    return document


def _drop_discriminators(value: Any) -> None:
    """They lack the mappings without which a name is looked for that nobody gave."""
    if isinstance(value, dict):
        if isinstance(value.get("discriminator"), dict):
            del value["discriminator"]
        for each in value.values():
            _drop_discriminators(each)
    elif isinstance(value, list):
        for each in value:
            _drop_discriminators(each)


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def served_part(document: dict[str, Any], served: set[tuple[str, str]]) -> dict[str, Any]:
    """The document with those operations only that are in `served`: (method in lower case, path without `/v1`)."""
    paths = {
        path: {key: value for key, value in item.items() if key == "parameters" or (key, _plain(path)) in served}
        for path, item in document["paths"].items()
    }
    kept = {path: item for path, item in paths.items() if any(key != "parameters" for key in item)}
    return document | {"paths": kept, "servers": [{"url": "/v1"}]}


def _plain(path: str) -> str:
    """A path template with its parameters unnamed."""
    return "/".join("{}" if part.startswith("{") else part for part in path.split("/"))


def plain_routes(paths: dict[str, Any]) -> set[tuple[str, str]]:
    """The operations of an OpenAPI document's `paths` that lie under `/v1`."""
    return {
        (method, _plain(path.removeprefix("/v1").replace(":path}", "}")))
        for path, item in paths.items()
        if path.startswith("/v1/")
        for method in item
    }
