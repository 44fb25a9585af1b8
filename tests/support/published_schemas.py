"""Schemas of OpenAI's published API document, which is not part of this repository: see `published`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from published import WHERE, document_path


def check(name: str, data: Any) -> None:
    """Fail where `data` is not what the schema `name` says; skip the test where there is no document."""
    where = str(document_path())
    if not Path(where).is_file():
        pytest.skip(f"OpenAI's API document is not here: {WHERE}")
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
