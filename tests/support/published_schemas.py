"""Schemas of OpenAI's published API document, which is not part of this repository. `KVARN_OPENAPI` names the file."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml


def check(name: str, data: Any) -> None:
    """Fail where `data` is not what the schema `name` says; skip the test where there is no document."""
    where = os.environ.get("KVARN_OPENAPI", "")
    if not Path(where).is_file():
        pytest.skip("no OpenAI API document: get openapi.yaml from github.com/openai/openai-openapi, set KVARN_OPENAPI")
    errors = [f"{list(error.instance_path)}: {error.message}" for error in _validator(where, name).iter_errors(data)]
    assert not errors, f"not a {name}: {data}\n" + "\n".join(errors)


@cache
def _components(where: str) -> dict[str, Any]:
    with Path(where).open(encoding="utf-8") as file:
        document: dict[str, Any] = yaml.load(file, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    schemas = {name: _plain(schema) for name, schema in document["components"]["schemas"].items()}
    return {"schemas": schemas}


@cache
def _validator(where: str, name: str) -> Any:
    schema = {"$ref": f"#/components/schemas/{name}", "components": _components(where)}
    return jsonschema_rs.Draft202012Validator(schema)


def _plain(value: Any) -> Any:
    """Without examples, which YAML may have read as dates, and with `nullable`, which the document writes here and
    there, in the words of its own version of OpenAPI."""
    if isinstance(value, dict):
        plain = {str(key): _plain(each) for key, each in value.items() if key not in ("example", "examples")}
        if plain.get("nullable") is True:
            del plain["nullable"]
            return {"anyOf": [plain, {"type": "null"}]}
        return plain
    return [_plain(each) for each in value] if isinstance(value, list) else value
