"""Grammars that are kept for requests that ask for the same."""

from __future__ import annotations

import asyncio

import msgspec

from kvarn.answers.structured.grammar_pool import GrammarPool, encode
from kvarn.grammar.asked import AnswerGrammar, Asked
from kvarn.sandbox.process import SandboxLimits


async def test_what_several_requests_make_at_once_is_kept_and_counted_once(monkeypatch):
    pool, asked, go = GrammarPool(SandboxLimits()), Asked(None, None, {}), asyncio.Event()
    reply, calls = msgspec.json.encode(AnswerGrammar("x")), 0

    async def call(tenant: str, payload: bytes) -> bytes:
        nonlocal calls
        calls += 1
        if calls == 3:
            go.set()
        await go.wait()
        return reply

    monkeypatch.setattr(pool._pool, "call", call)
    made = await asyncio.gather(*[pool.make(tenant, asked, encode(asked)) for tenant in "abc"])
    assert {each.text for each in made} == {"x"} and pool._kept_bytes == len(reply) and len(pool._kept) == 1
    assert (await pool.make("d", asked, encode(asked))).text == "x" and calls == 3
