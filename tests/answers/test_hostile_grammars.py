"""Grammars and schemas that would take all time or all memory: their request gets a 400, everybody else an answer."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from profiles import THOROUGH

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}


def schema(value: dict[str, Any]) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": value}}}


def grammar(text: str) -> dict[str, Any]:
    return {"structured_outputs": {"grammar": text}}


def nested(inner: dict[str, Any], keyword: str) -> dict[str, Any]:
    """References that double at each of 25 levels."""
    levels = {f"a{n}": {keyword: [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(25)}
    return schema({"$defs": {**levels, "a25": inner}, "$ref": "#/$defs/a0"})


def product(keyword: str) -> dict[str, Any]:
    parts = [[{"properties": {f"p{n}_{m}": {"type": "integer"}}} for m in range(6)] for n in range(8)]
    return schema({"allOf": [{keyword: part} for part in parts]})


REPEATED = " ".join('("a"{0,500} "b"{0,500}){0,500}' for _ in range(100))
BOUNDED: dict[str, dict[str, Any]] = {
    "properties": schema({"type": "object", "properties": {f"p{n}": {} for n in range(8000)}}),
    "intersection": schema({"allOf": [{"type": "string", "pattern": f"(.*{n}.*){{3}}"} for n in range(30)]}),
    "GBNF": grammar(f"root ::= {REPEATED}"),
}
"""Pass a bound of the process."""
OTHERS: dict[str, dict[str, Any]] = {
    "multipleOf": schema({"type": "integer", "multipleOf": 99_999_989}),
    "multipleOf below": schema({"type": "object", "properties": {"a": {"type": "integer", "multipleOf": 999_983}}}),
    "product of multipleOf": schema({"type": "integer", "allOf": [{"multipleOf": n} for n in (97, 101, 103, 107)]}),
    "enum": schema({"enum": [f"v{n}" for n in range(20_000)]}),
    "enum of numbers": schema({"enum": list(range(20_000))}),
    "repetition": schema({"type": "string", "pattern": "^(((a{1,1000}){1,1000}){1,1000}){1,1000}$"}),
    "items": schema({"type": "array", "minItems": 900, "items": {"type": "array", "maxItems": 1000}}),
    "allOf of anyOf": product("anyOf"),
    "allOf of oneOf": product("oneOf"),
    "nest of anyOf": nested({"type": "null"}, "anyOf"),
    "nest of allOf": nested({"type": "object"}, "allOf"),
    "Lark": grammar("start: A\nA: " + " & ".join(f"/(.*{n}.*){{3}}/" for n in range(40))),
    "Lark, repeated": grammar(f"start: {REPEATED}"),
    "regex": {"structured_outputs": {"regex": "(((a{1,1000}){1,1000}){1,1000}){1,1000}"}},
    "choices": {"structured_outputs": {"choice": [f"c{n}" * 10 for n in range(4096)]}},
}
"""Are small, or refused for what they ask, or pass a bound."""
CHOSEN = [*BOUNDED, *OTHERS] if THOROUGH else ["intersection"]


@pytest.fixture(scope="module")
def bounded_server(serve: Any) -> Iterator[Any]:
    with serve(client_work_timeout_s=1) as server:
        yield server


@pytest.mark.parametrize("name", CHOSEN)
def test_four_at_a_time_harm_nobody(bounded_server, name):
    body = {**CHAT, **(BOUNDED | OTHERS)[name]}
    with bounded_server.client() as client, bounded_server.client() as other, ThreadPoolExecutor(4) as threads:
        answers = [threads.submit(client.post, "/v1/chat/completions", json=body) for _ in range(4)]
        for _ in range(5):
            assert other.get("/health").status_code == 200
            assert other.post("/v1/chat/completions", json=CHAT).status_code == 200
        for each in answers:
            answer = each.result()
            assert answer.status_code == 400 or (name in OTHERS and answer.status_code == 200), answer.text
            error = answer.json().get("error")
            if name in BOUNDED:
                (param,) = list(BOUNDED[name])
                assert error["code"] == "grammar_limit_exceeded" and error["param"].startswith(param), error
                assert "within 1 s (gateway.client_work_timeout_s)" in error["message"]
        fine = {**CHAT, "structured_outputs": {"regex": f"[a-z]+{name}"}}
        assert client.post("/v1/chat/completions", json=fine).status_code == 200


def test_what_a_client_asked_for_is_given_up_when_it_leaves(serve, wait_for):
    regex = {**CHAT, "structured_outputs": {"regex": "[a-z]+"}}
    with serve(client_work_timeout_s=600) as server, server.client() as client:
        assert client.post("/v1/chat/completions", json=regex).status_code == 200
        before = server.gateway.grammars.pids
        with pytest.raises(httpx.ReadTimeout):
            client.post("/v1/chat/completions", json={**CHAT, **BOUNDED["intersection"]}, timeout=0.3)
        wait_for(lambda: server.gateway.grammars.pids not in (before, []), "the process to be replaced")


def test_a_grammar_that_was_made_is_kept(bounded_server):
    """Refusals too: nobody has the same work done again and again."""
    made: list[bytes] = []
    pool = bounded_server.gateway.grammars._pool
    call = pool.call

    async def counted(tenant: str, request: bytes) -> bytes:
        made.append(request)
        return bytes(await call(tenant, request))

    pool.call = counted
    try:
        with bounded_server.client() as client:
            for regex, status in (("[a-z]{3}", 200), ("(", 400)):
                body = {**CHAT, "structured_outputs": {"regex": regex}}
                for _ in range(3):
                    assert client.post("/v1/chat/completions", json=body).status_code == status
    finally:
        pool.call = call
    assert len(made) == 2
