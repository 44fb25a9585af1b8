"""The life of an answer: stages take a turn, refuse it or answer it; observers hear it; all is settled once."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest

from kvarn.answers.chat.operation import start_chat
from kvarn.answers.choice import ChoiceDelta
from kvarn.answers.lifecycle import take_in
from kvarn.answers.observer import AnswerListener, Observer
from kvarn.answers.record import RequestRecord
from kvarn.answers.turn import Deltas, Outcome, Prompt, Turn
from kvarn.wire.openai.chat.request import ChatCompletionRequest
from kvarn.wire.openai.errors import ApiError

CHAT = ChatCompletionRequest.model_validate({"model": "tiny", "messages": [{"role": "user", "content": "hi"}]})


class Noting:
    """A stage that notes what enters and what is settled."""

    name = "noting"

    def __init__(self, notes: list[str], label: str, answer: str | None = None, refuses: bool = False) -> None:
        self.notes, self.label, self.answer, self.refuses = notes, label, answer, refuses
        self.turns: list[Turn] = []

    async def enter(self, turn: Turn) -> Deltas | None:
        if self.refuses:
            raise ApiError(429, "no")
        self.notes.append(f"{self.label} enters")
        self.turns.append(turn)
        turn.closing.callback(self.notes.append, f"{self.label} settled")
        return None if self.answer is None else self._deltas(self.answer)

    async def _deltas(self, text: str) -> AsyncGenerator[ChoiceDelta, None]:
        yield ChoiceDelta(0, text=text, token_ids=[1])
        yield ChoiceDelta(0, token_ids=[2], finish_reason="stop")


class Listening(Observer):
    """An observer that notes what it hears, and may fail at one of its calls."""

    def __init__(self, notes: list[str], label: str, fails: str = "") -> None:
        self.notes, self.label, self.fails = notes, label, fails

    def _note(self, call: str, text: str | None = None) -> None:
        if text is not None:
            self.notes.append(f"{self.label}: {text}")
        if self.fails == call:
            raise RuntimeError(call)

    def listen(self, turn: Turn, question: Any) -> AnswerListener:
        self._note("listen")
        return self

    def take(self, delta: ChoiceDelta) -> None:
        self._note("take", delta.text)

    def end(self, error: BaseException | None) -> None:
        self._note("end", "whole" if error is None else type(error).__name__)

    def not_begun(self, record: RequestRecord, model: str, error: Exception) -> None:
        self._note("not_begun", "refused")


def with_steps(server: Any, **changes: Any) -> Any:
    return replace(server.gateway, steps=replace(server.gateway.steps, **changes))


def test_stages_are_settled_once_in_reverse_when_one_refuses(server):
    async def run() -> None:
        notes: list[str] = []
        first, second = Noting(notes, "first"), Noting(notes, "second")
        gateway = with_steps(server, stages=(first, second, Noting(notes, "third", refuses=True)))
        record = RequestRecord("r", endpoint="/v1/chat/completions")
        model = gateway.catalog.ready(record, "tiny", "generate")
        with pytest.raises(ApiError):
            await take_in(gateway, record, Prompt(model=model, tokens=1))
        await record.close()
        assert notes == ["first enters", "second enters", "second settled", "first settled"]
        assert first.turns[0].outcome is Outcome.FAILED and not record.turns

    server.do(run())


def test_a_stage_may_answer_and_no_later_stage_and_no_engine_is_asked(server):
    async def run() -> None:
        notes: list[str] = []
        stages = (Noting(notes, "first"), Noting(notes, "cache", answer="known"), Noting(notes, "last"))
        gateway = with_steps(server, stages=stages, observers=(Listening(notes, "a"), Listening(notes, "b")))
        record = RequestRecord("r", endpoint="/v1/chat/completions")
        before = len(server.chat.submitted)
        answer = await (await start_chat(gateway, record, CHAT)).collect()
        await record.close()
        assert answer.choices[0].message.content == "known"
        assert len(server.chat.submitted) == before
        assert notes == [
            *("first enters", "cache enters", "a: known", "b: known", "a: ", "b: ", "a: whole", "b: whole"),
            *("cache settled", "first settled"),
        ]

    server.do(run())


@pytest.mark.parametrize(("read", "outcome", "tokens"), [(2, Outcome.FINISHED, 2), (1, Outcome.ABORTED, 1)])
def test_a_turn_that_a_stage_answers_is_settled_by_what_was_read_of_it(server, read, outcome, tokens):
    async def run() -> None:
        gateway = with_steps(server, stages=(Noting([], "cache", answer="known"),))
        record = RequestRecord("r", endpoint="/v1/chat/completions")
        run = await start_chat(gateway, record, CHAT)
        for _ in range(read):
            await anext(run.deltas)
        await run.deltas.aclose()
        (turn,) = record.turns
        assert (turn.outcome, turn.usage.completion_tokens) == (outcome, tokens)
        assert turn.usage.prompt_tokens == turn.prompt_tokens > 0
        await record.close()

    server.do(run())


def test_turns_of_one_record_have_their_own_ids(server):
    async def run() -> None:
        gateway = with_steps(server, stages=())
        record = RequestRecord("r", endpoint="/v1/chat/completions")
        model = gateway.catalog.ready(record, "tiny", "generate")
        first, second = [await take_in(gateway, record, Prompt(model=model, tokens=1)) for _ in range(2)]
        assert record.turns == [first, second]
        assert first.engine_id == record.id and second.engine_id == f"{record.id}.1" and first.id != second.id
        await record.close()

    server.do(run())


def test_an_observer_hears_that_nobody_reads_on(server):
    async def run() -> None:
        notes: list[str] = []
        gateway = with_steps(
            server, stages=(Noting(notes, "cache", answer="known"),), observers=(Listening(notes, "a"),)
        )
        record = RequestRecord("r", endpoint="/v1/chat/completions")
        run = await start_chat(gateway, record, CHAT)
        await anext(run.deltas)
        await run.deltas.aclose()
        await record.close()
        assert notes == ["cache enters", "a: known", "a: GeneratorExit", "cache settled"]

    server.do(run())


@pytest.mark.parametrize("fails", ["listen", "take", "end"])
def test_an_observer_that_fails_neither_ends_the_answer_nor_keeps_it_from_others(server, fails):
    async def run() -> None:
        notes: list[str] = []
        observers = (Listening([], "a", fails), Listening(notes, "b"))
        gateway = with_steps(server, stages=(Noting([], "cache", answer="known"),), observers=observers)
        record = RequestRecord("r", endpoint="/v1/chat/completions")
        answer = await (await start_chat(gateway, record, CHAT)).collect()
        await record.close()
        assert answer.choices[0].message.content == "known"
        assert notes == ["b: known", "b: ", "b: whole"]

    server.do(run())


def test_an_observer_that_fails_at_a_refusal_does_not_replace_it(server):
    async def run() -> None:
        notes: list[str] = []
        observers = (Listening(notes, "a", "not_begun"),)
        gateway = with_steps(server, stages=(Noting([], "limits", refuses=True),), observers=observers)
        record = RequestRecord("r", endpoint="/v1/chat/completions")
        with pytest.raises(ApiError):
            await start_chat(gateway, record, CHAT)
        await record.close()
        assert notes == ["a: refused"]

    server.do(run())
