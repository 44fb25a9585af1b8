"""However a response comes to its end, and whoever wants to end it meanwhile: it ends once, and everybody is told the
same."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select, update

from fake_replica import answer_text
from kvarn.answers.record import RequestRecord
from kvarn.gateway.answer import event_stream, json_when_done
from kvarn.gateway.record import new_record
from kvarn.metering.service import Metering
from kvarn.responses import background, retrieval
from kvarn.responses import ending as response_ending
from kvarn.responses.ending import CONTINUABLE
from kvarn.responses.events import EventEncoder
from kvarn.responses.operation import start_response
from kvarn.store.engine import Store
from kvarn.store.errors import StoreAwayError
from kvarn.store.models import Conversation, ConversationItem, StoredResponse
from kvarn.store.repositories.conversations import responses as stored
from kvarn.store.repositories.conversations.conversations import create_conversation
from kvarn.store.repositories.queries import delete_owned
from kvarn.wire.openai.responses.answer import ENDED
from kvarn.wire.openai.responses.request import ResponseRequest
from profiles import examples

ENDS = ["response.completed", "response.incomplete", "response.failed"]
DELAYS_MS = (0, 1, 2, 4, 8, 15)


@dataclass(frozen=True)
class Plan:
    """What happens, and when."""

    way: str
    answer: str
    in_conversation: bool
    acts: list[tuple[int, str]]
    """Milliseconds of waiting, then what happens."""


plans = st.builds(
    Plan,
    st.sampled_from(["plain", "stream", "background"]),
    st.sampled_from(["whole", "too long", "lost"]),
    st.booleans(),
    st.lists(
        st.tuples(st.sampled_from(DELAYS_MS), st.sampled_from(["cancel", "leave", "stop", "away", "back", "steal"])),
        max_size=5,
    ),
)


@dataclass
class Seen:
    """What came of it."""

    response_id: str = ""
    sent: bytes = b""
    kept: list[str] = field(default_factory=list)
    """States in which it was kept, each time that it was."""
    used: list[str] = field(default_factory=list)
    """Outcomes of its usage events."""
    row: StoredResponse | None = None
    items: list[Any] = field(default_factory=list)
    locked_by: str | None = None

    @property
    def events(self) -> list[dict[str, Any]]:
        blocks = self.sent.decode().split("\n\n")
        return [json.loads(block.partition("\ndata: ")[2]) for block in blocks if "\ndata: " in block]


class Connection:
    """Between a gateway and its database."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cut = False
        self._real = {"reading": store.reading, "transaction": store.transaction}
        for name in self._real:
            monkeypatch.setattr(store, name, lambda name=name: self._session(name))

    @asynccontextmanager
    async def _session(self, name: str) -> AsyncGenerator[Any, None]:
        if self.cut:
            raise StoreAwayError("the connection is cut")
        async with self._real[name]() as session:
            yield session


class Setup:
    """One response, asked for in one way, while a plan is acted out."""

    def __init__(self, server: Any, connection: Connection, plan: Plan) -> None:
        self.gateway, self.connection, self.plan = server.gateway, connection, plan
        self.seen = Seen()
        self.taken, self.gone = asyncio.Event(), asyncio.Event()
        self.run: Any = None
        self.scope: Any = {"type": "http", "headers": [], "path": "/v1/responses"}
        self.record: RequestRecord = new_record(self.scope)
        self.conversation_id: str | None = None
        chat = server.chat
        chat.step_s, chat.lose_after = 0.001, 5 if plan.answer == "lost" else None
        chat.answer = lambda request, index: answer_text("x" * (400 if plan.answer == "too long" else 9))

    async def act_out(self) -> Seen:
        store, owner = self.gateway.store, self.record.principal.owner
        if self.plan.in_conversation:
            self.conversation_id = (await create_conversation(store, owner, {}, [])).id
        asking = asyncio.create_task(self._ask(self._request()))
        await self.taken.wait()
        for delay_ms, change in self.plan.acts:
            await asyncio.sleep(delay_ms / 1000)
            await self._act(change, asking)
        self.connection.cut = False
        with suppress(asyncio.CancelledError):
            await asking
        if self.plan.way == "background":
            while self.run.task is not None and not self.run.task.done():  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            self.seen.sent = b"".join([chunk async for chunk in EventEncoder().encoded(self.run.log.follow())])
        await self._look()
        return self.seen

    def _request(self) -> ResponseRequest:
        asked = {"model": "tiny", "input": "hi", "max_output_tokens": 16, "conversation": self.conversation_id}
        return ResponseRequest.model_validate(asked | {"background": self.plan.way == "background"})

    async def _ask(self, asked: ResponseRequest) -> None:
        try:
            if self.plan.way == "background":
                self.run = await background.start_background(self.gateway, self.record, asked)
                self.seen.response_id = self.run.id
                self.taken.set()
                return
            self.run = await start_response(self.gateway, self.record, asked)
            self.seen.response_id = self.run.writer.response.id
            self.taken.set()
            if self.plan.way == "plain":
                answer = json_when_done(self.run.collect())
            else:
                answer = event_stream(self.run.stream(), end=b"", encode_error=self.run.error_event)
            with suppress(Exception):  # becomes an HTTP error
                await answer(self.scope, self._receive, self._send)
        finally:
            self.taken.set()
            await self.record.close()

    async def _receive(self) -> Any:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        await asyncio.sleep(0)  # as the server does: it waits for room, then writes
        if not self.gone.is_set():
            self.seen.sent += message.get("body", b"")

    async def _act(self, change: str, asking: asyncio.Task[None]) -> None:
        in_background = self.plan.way == "background"
        match change:
            case "cancel" if in_background and not self.connection.cut:
                owner = self.record.principal.owner
                with suppress(StoreAwayError):
                    await retrieval.cancel_response(self.gateway, owner, self.seen.response_id)
            case "leave" if not in_background:
                self.gone.set()
            case "stop" if in_background:
                stopping = asyncio.create_task(self.run.stop("shutdown"))
                await asyncio.wait({stopping}, timeout=0.05)
            case "stop" if not asking.cancelling():  # a server stops once
                asking.cancel()
            case "away" | "back":
                self.connection.cut = change == "away"
            case "steal" if self.conversation_id is not None and not self.connection.cut:
                async with self.gateway.store.transaction() as session:
                    stolen = update(Conversation).where(Conversation.id == self.conversation_id)
                    await session.execute(stolen.values(locked_by="resp_thief"))

    async def _look(self) -> None:
        seen = self.seen
        async with self.gateway.store.reading() as session:
            seen.row = await session.get(StoredResponse, seen.response_id)
            if self.conversation_id is not None:
                of_it = ConversationItem.conversation_id == self.conversation_id
                rows = await session.scalars(select(ConversationItem).where(of_it).order_by(ConversationItem.position))
                seen.items = [row.item for row in rows]
                conversation = await session.get(Conversation, self.conversation_id)
                seen.locked_by = conversation.locked_by


@pytest.fixture
def scenes(server: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Acts out a plan; tells what came of it."""
    monkeypatch.setattr(response_ending, "RETRY_AFTER_S", 0.005)
    monkeypatch.setattr(background, "RETRY_AFTER_S", 0.005)
    connection = Connection(server.gateway.store, monkeypatch)
    kept: list[tuple[str, str]] = []
    used: list[tuple[str, str]] = []
    keep, finish, settle = stored.keep_response, stored.finish_background, Metering.finish

    async def keep_response(store: Any, owner: Any, ended: Any, *, stored: bool) -> None:
        await keep(store, owner, ended, stored=stored)
        kept.append((ended.id, ended.body["status"]))

    async def finish_background(store: Any, owner: Any, ended: Any, gateway_id: str) -> bool:
        ours = await finish(store, owner, ended, gateway_id)
        if ours:
            kept.append((ended.id, ended.body["status"]))
        return ours

    def note(metering: Metering, slot: Any, request: Any, had: Any) -> Any:
        used.append((request.request_id, had.outcome))
        return settle(metering, slot, request, had)

    monkeypatch.setattr(stored, "keep_response", keep_response)
    monkeypatch.setattr(stored, "finish_background", finish_background)
    monkeypatch.setattr(Metering, "finish", note)

    def act_out(plan: Plan) -> Seen:
        async def play() -> Seen:
            setup = Setup(server, connection, plan)
            setup.record.request_id = f"req-{uuid.uuid4().hex}"
            seen = await setup.act_out()
            ids = (setup.record.request_id, seen.response_id)
            seen.kept = [state for name, state in kept if name == seen.response_id]
            seen.used = [outcome for name, outcome in used if name in ids]
            if seen.row is not None:
                await delete_owned(server.gateway.store, setup.record.principal.owner, StoredResponse, seen.response_id)
            return seen

        result: Seen = server.do(play())
        return result

    yield act_out
    connection.cut = False


def test_it_ends_once_and_everybody_is_told_the_same(scenes):
    @settings(max_examples=examples(40))
    @given(plans)
    def check(plan: Plan) -> None:
        seen = scenes(plan)
        check_kept(plan, seen)
        check_told(plan, seen)
        check_conversation(plan, seen)
        assert len(seen.used) <= 1, "used twice"
        if any(event["type"] == "response.output_text.delta" for event in seen.events) or seen.items:
            assert len(seen.used) == 1, "used and not on the ledger"

    check()


def check_kept(plan: Plan, seen: Seen) -> None:
    """One state is kept, and it is one of an end, unless the response was given back."""
    assert len(seen.kept) <= 1, "kept twice"
    if seen.row is None:
        assert plan.way != "background" and not seen.kept
        return
    status = seen.row.body["status"]
    assert seen.row.status == status
    if seen.kept:
        assert seen.kept == [status] and status in ENDED
    else:  # given back, or cancelled before its task began
        assert plan.way == "background" and status in ("queued", "in_progress", "cancelled")
        assert status == "cancelled" or any(change == "stop" for _, change in plan.acts)


def check_told(plan: Plan, seen: Seen) -> None:
    """The last event is that of the response as it is kept."""
    if plan.way == "plain":
        if seen.sent and b'"error":null' in seen.sent:
            told = msgspec.json.decode(seen.sent)
            assert told["status"] in CONTINUABLE
            assert seen.row.body == told if told["store"] else seen.row is None
        return
    events = [event for event in seen.events if event["type"] != "error"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    ends = [event for event in events if event["type"] in ENDS]
    assert len(ends) <= 1 and ends == events[-1:][: len(ends)], "told twice, or something told after the end"
    if ends:
        told = ends[0]["response"]
        assert (seen.row.body == told and seen.kept) if told["store"] else (seen.row is None and not seen.kept)
    elif plan.way == "background":
        assert not seen.kept, "ended, and its followers did not hear of it"
    elif not any(change == "leave" for _, change in plan.acts):
        assert seen.row is None, "kept, and its client did not hear of it"


def check_conversation(plan: Plan, seen: Seen) -> None:
    """It goes on from answers that came to their end, and from no others."""
    stolen = any(change == "steal" for _, change in plan.acts)
    if not plan.in_conversation:
        return
    if seen.kept and seen.kept[0] in CONTINUABLE:
        assert seen.items == [*seen.row.input_items, *seen.row.body["output"]]
    else:
        assert seen.items == []
    given_back = seen.row is not None and not seen.kept  # it may hold on to its conversation
    if not (stolen or given_back or any(change == "away" for _, change in plan.acts)):
        assert seen.locked_by is None, "the conversation stays locked"
