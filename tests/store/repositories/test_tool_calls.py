"""Approved calls in the database: each is noted once, whoever asks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from kvarn.store.engine import Store
from kvarn.store.models import StoredToolCall
from kvarn.store.owner import Principal
from kvarn.store.repositories.tool_calls import NewCall, claim_approved, note_ended, release_claims
from new_tenants import create_organization

CALLS = [NewCall("mcp", "bank__pay", "digest", f"mcpr_{name}") for name in "abc"]


class TakenError(Exception):
    pass


def refuse(call: NewCall, row: StoredToolCall | None) -> None:
    assert row is not None and row.name == call.name
    raise TakenError(row.status)


@pytest.fixture
async def principal(store: Store) -> Principal:
    return await create_organization(store, "red")


async def claim(store: Store, principal: Principal, calls: list[NewCall]) -> Mapping[str, str] | TakenError:
    try:
        return await claim_approved(store, principal, "answer", "req_1", calls, refuse)
    except TakenError as error:
        return error


async def test_of_requests_at_once_one_gets_all_calls(store: Store, principal: Principal) -> None:
    claims = [claim(store, principal, CALLS if number % 2 else CALLS[::-1]) for number in range(8)]
    made = await asyncio.gather(*claims)
    (winner,) = [each for each in made if not isinstance(each, TakenError)]
    assert sorted(winner) == [call.approval_request_id for call in CALLS]


async def test_calls_are_noted_all_or_none(store: Store, principal: Principal) -> None:
    await claim(store, principal, CALLS[2:])
    assert isinstance(await claim(store, principal, CALLS), TakenError)
    assert len(await claim_approved(store, principal, "answer", "req_2", CALLS[:2], refuse)) == 2


async def test_an_ended_call_is_shown_and_a_released_one_is_not(store: Store, principal: Principal) -> None:
    noted = await claim_approved(store, principal, "answer", "req_1", CALLS[:2], refuse)
    await note_ended(store, principal, noted["mcpr_a"], "completed", duration_ms=1, result={"output": "paid"})
    await release_claims(store, [noted["mcpr_b"]])
    seen: list[StoredToolCall | None] = []
    again = await claim_approved(store, principal, "other", "req_2", CALLS[:2], lambda call, row: seen.append(row))
    assert list(again) == ["mcpr_b"]
    (row,) = seen
    assert row is not None and (row.status, row.result) == ("completed", {"output": "paid"})


async def test_another_projects_approval_is_its_own(store: Store, principal: Principal) -> None:
    other = await create_organization(store, "blue")
    for each in (principal, other):
        assert len(await claim_approved(store, each, "answer", "req_1", CALLS, refuse)) == 3
