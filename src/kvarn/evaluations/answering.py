"""One item of a run: asked as an ordinary request of the lowest tier, and graded."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from pydantic import TypeAdapter

from kvarn.admission.demand import BATCH
from kvarn.answers.record import Deferred, Reply, RequestRecord
from kvarn.batches.endpoints import ENDPOINTS
from kvarn.batches.items import FIRST_PAUSE_S, LONGEST_PAUSE_S
from kvarn.batches.line import Refused, run_line
from kvarn.evaluations.grading import JUDGE_SCHEMA, Grade, grade, item_score, judge_grade, judge_messages
from kvarn.responses.background_runs import ResponsesContext
from kvarn.sandbox.errors import SandboxError
from kvarn.store.errors import StoreAwayError
from kvarn.store.models import EvaluationRun
from kvarn.store.owner import Principal
from kvarn.store.repositories.batches.lines import Line
from kvarn.store.repositories.feedback import model_and_version
from kvarn.wire.dialects import dialect_of
from kvarn.wire.evaluations import EvaluationItem, JudgeCheck, RunRequest
from kvarn.wire.openai.cache import NEITHER

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
_MAX_OUTPUT_CHARS = 8 * 1024
"""Beginning of an answer that is kept."""
_MAX_GRADED_CHARS = 256 * 1024
_JUDGE_TOKENS = 256
_MAX_LOSSES = 5
"""An item beside which the engine died so often is not asked again: it may be what kills it."""

_ITEM = TypeAdapter(EvaluationItem)
_log = logging.getLogger("kvarn.evaluations")


@dataclass(frozen=True, slots=True)
class Answered:
    text: str
    request_id: str
    output_tokens: int
    version: tuple[str, str]  # of the model that answered: its name and its version


class UnansweredError(Exception):
    """The model gave no answer; the message says why."""


@dataclass(frozen=True, slots=True)
class ItemRun:
    """Asks and grades the items of one run, in the name of its maker's key. `give_up_at`: the time, in seconds since
    1970, from which on what is refused for the moment is not asked again."""

    serving: ResponsesContext
    run: EvaluationRun
    principal: Principal
    give_up_at: float

    async def answer(self, number: int, kept: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, str] | None]:
        """The result of an item, as the store keeps it, and the version that answered it; None: none did. Raises
        `StoreAwayError`; other errors are the item's."""
        settings = msgspec.convert(self.run.settings, RunSettings)
        body: dict[str, Any] = {
            "model": self.run.asked_model,
            "max_tokens": settings.max_tokens,
            "temperature": settings.temperature,
            "seed": settings.seed,
        }
        try:
            item = _ITEM.validate_python(kept)
            if item.messages is not None:
                answered = await self._ask(CHAT, f"{number}", body | {"messages": item.messages})
            else:
                answered = await self._ask(TEXT, f"{number}", body | {"prompt": item.prompt})
            judge = partial(self._judge, number, item, settings.judge_model)
            grades = await grade(item, answered.text[:_MAX_GRADED_CHARS], judge, self._schema_fault)
        except UnansweredError as error:
            return _result(number, None, [], str(error)), None
        except StoreAwayError:
            raise
        except Exception as error:
            _log.exception("item %d of the evaluation run %s failed", number, self.run.id)
            problem = f"an unforeseen error, {type(error).__name__}: the server's log says more"
            return _result(number, None, [], problem), None
        return _result(number, answered, grades, None), answered.version

    async def _judge(self, number: int, item: EvaluationItem, model: str | None, check: JudgeCheck, text: str) -> Grade:
        body = {
            "model": check.model or model,
            "messages": judge_messages(item, check, text),
            "max_tokens": _JUDGE_TOKENS,
            "temperature": 0.0,
            "seed": 0,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "grade", "schema": JUDGE_SCHEMA, "strict": True},
            },
        }
        try:
            reply = await self._ask(CHAT, f"{number}-judge", body)
        except UnansweredError as error:
            raise UnansweredError(f"the judge {body['model']!r} did not answer: {error}") from None
        return judge_grade(check, reply.text)

    async def _schema_fault(self, schema: str, text: str) -> str | None:
        try:
            return await self.serving.grammars.check(self.principal.organization_id, [(schema, text)])
        except SandboxError as error:
            return f"it could not be checked: {error}"

    async def _ask(self, endpoint: str, name: str, body: dict[str, Any]) -> Answered:
        """The answer to a request; one that is refused for the moment is sent again. Raises `UnansweredError`."""
        line = Line(0, name, msgspec.json.encode(body), str(body["model"]))
        pause_s, losses = FIRST_PAUSE_S, 0
        while True:
            record = RequestRecord(
                f"{self.run.id}-{name}",
                endpoint=endpoint,
                principal=self.principal,
                deferred=Deferred(BATCH),
                body_bytes=len(line.body),
                reply=Reply(dialect=dialect_of(endpoint)),
                cache=NEITHER,
            )
            result = await run_line(ENDPOINTS[endpoint], self.serving, record, line)
            if isinstance(result, Refused):
                losses += result.error.code == "replica_lost"
                if losses >= _MAX_LOSSES or self.serving.store.now() >= self.give_up_at:
                    raise UnansweredError(result.error.message)
                await asyncio.sleep(result.retry_after_s or pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                continue
            assert result is not None  # it was not preempted: nobody preempts it
            said = msgspec.json.decode(result.content or b"", type=_OutputLine).response.body
            if result.failed:
                raise UnansweredError(str(said.get("error", {}).get("message", "no reason is known")))
            turn = record.turns[-1]
            version = model_and_version(turn.model, turn.model_version)
            return Answered(_text_of(said), record.request_id, result.output_tokens, version)


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    judge_model: str | None = None
    max_tokens: int | None = None
    temperature: float = 0.0
    seed: int = 0

    @classmethod
    def of(cls, request: RunRequest) -> RunSettings:
        return cls(**{name: getattr(request, name) for name in cls.__struct_fields__})


class _Response(msgspec.Struct):
    body: dict[str, Any]


class _OutputLine(msgspec.Struct):
    response: _Response


def _text_of(body: dict[str, Any]) -> str:
    """The text of the first choice of a chat or a completion."""
    choice = body["choices"][0]
    message = choice.get("message")
    return str((choice.get("text") if message is None else message.get("content")) or "")


def _result(number: int, answered: Answered | None, grades: list[Grade], error: str | None) -> dict[str, Any]:
    return {
        "item": number,
        "score": item_score(grades),
        "passed": bool(grades) and all(each.passed for each in grades),
        "output": "" if answered is None else answered.text[:_MAX_OUTPUT_CHARS].replace("\0", "\ufffd"),
        "grades": msgspec.to_builtins(grades),
        "error": error and error[:512].replace("\0", "\ufffd"),
        "request_id": "" if answered is None else answered.request_id,
        "output_tokens": 0 if answered is None else answered.output_tokens,
    }
