"""Prompts of projects that opted in, with their answers: a share of them, redacted and sealed, written beside the
requests and never in their way."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from kvarn.config.schema import KvarnConfig
from kvarn.observe.redaction import redact
from kvarn.safety.errors import SafetyError
from kvarn.safety.sealing import Seal
from kvarn.store.engine import Store
from kvarn.store.errors import StoreError
from kvarn.store.models import PromptSample
from kvarn.store.owner import Principal
from kvarn.store.repositories.prompt_samples import add_answers, add_samples, new_sample

_MAX_WAITING = 256
_MAX_WAITING_BYTES = 32 * 1024 * 1024
_MAX_BATCH = 32
_MAX_UNANSWERED = 4096
"""Kept prompts whose answers are waited for at most."""
_STOP_S = 2.0

_log = logging.getLogger("kvarn.safety")


@dataclass(frozen=True, slots=True)
class _Waiting:
    principal: Principal
    request_id: str
    model: str
    created_at: int
    plain: bytes
    event_id: str | None

    @property
    def size(self) -> int:
        return len(self.plain)


@dataclass(frozen=True, slots=True)
class _Answer:
    event_id: str
    plain: bytes

    @property
    def size(self) -> int:
        return len(self.plain)


class PromptLog:
    """Takes prompts, and writes a share of them (`draw` gives numbers from 0 to 1) when it can. What comes faster than
    it can be written is dropped and counted."""

    def __init__(self, config: KvarnConfig, store: Store, draw: Callable[[], float] = random.random) -> None:
        self.dropped = 0
        self._config = config
        self._store = store
        self._draw = draw
        self._seal: Seal | None = None
        self._waiting: asyncio.Queue[_Waiting | _Answer] = asyncio.Queue(_MAX_WAITING)
        self._unanswered: dict[str, None] = {}  # usage events of kept prompts without an answer, oldest first
        self._waiting_bytes = 0
        self._writer: asyncio.Task[None] | None = None

    def offer(
        self,
        principal: Principal,
        request_id: str,
        model: str,
        make: Callable[[], dict[str, Any]],
        event_id: str | None = None,
    ) -> None:
        """Keep a prompt, perhaps: `make` gives it as JSON's data, and is called only where it is kept. `event_id`: the
        usage event of its turn, by which `answered` adds the answer."""
        if not principal.log_prompts or self._draw() >= self._config.safety.log_prompts_sample:
            return
        plain = msgspec.json.encode(make())
        waiting = _Waiting(principal, request_id, model, int(self._store.now()), plain, event_id)
        if self._take(waiting) and event_id is not None:
            self._unanswered[event_id] = None
            if len(self._unanswered) > _MAX_UNANSWERED:
                del self._unanswered[next(iter(self._unanswered))]

    def wants_answer(self, event_id: str) -> bool:
        """Whether the prompt of a turn was kept; asked once."""
        if event_id not in self._unanswered:
            return False
        del self._unanswered[event_id]
        return True

    def answered(self, event_id: str, text: str) -> None:
        """Keep the answer to a prompt that was kept."""
        self._take(_Answer(event_id, text.encode("utf-8", "replace")))

    async def open(self, sealed: bytes) -> bytes:
        """Open what was kept. Raises `SafetyError`: the key is not there any more."""
        return await asyncio.to_thread((await self._loaded()).open, sealed)

    async def flush(self) -> None:
        """Wait until all that was taken is written or given up."""
        await self._waiting.join()

    async def close(self) -> None:
        """Write what waits, for a short time, and stop."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_STOP_S):
                await self._waiting.join()
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.gather(self._writer, return_exceptions=True)

    def _take(self, entry: _Waiting | _Answer) -> bool:
        if self._waiting.full() or self._waiting_bytes + entry.size > _MAX_WAITING_BYTES:
            self.dropped += 1
            return False
        self._waiting.put_nowait(entry)
        self._waiting_bytes += entry.size
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_on())
        return True

    async def _loaded(self) -> Seal:
        if self._seal is None:
            self._seal = await asyncio.to_thread(Seal.load, self._config)
        return self._seal

    async def _write_on(self) -> None:
        while True:
            batch = [await self._waiting.get()]
            while len(batch) < _MAX_BATCH and not self._waiting.empty():
                batch.append(self._waiting.get_nowait())
            try:
                await self._write(batch)
            except Exception as error:
                self._note_failed(len(batch), error)
            finally:
                self._waiting_bytes -= sum(each.size for each in batch)
                for _ in batch:
                    self._waiting.task_done()

    async def _write(self, batch: list[_Waiting | _Answer]) -> None:
        seal = await self._loaded()
        prompts = [each for each in batch if isinstance(each, _Waiting)]
        missed = await add_samples(self._store, await asyncio.to_thread(_seal_all, seal, prompts))
        if missed.full:
            self.dropped += missed.full
            why = "their organisations have stored as much as they may"
            _log.warning("%d prompts were not kept: %s", missed.full, why)
        if missed.error is not None:
            self._note_failed(missed.failed, missed.error)
        answers = [each for each in batch if isinstance(each, _Answer)]
        try:
            await add_answers(self._store, await asyncio.to_thread(_seal_answers, seal, answers))
        except Exception as error:  # the prompts of the batch are kept
            self._note_failed(len(answers), error, "answers")

    def _note_failed(self, count: int, error: Exception, what: str = "prompts") -> None:
        self.dropped += count
        known = isinstance(error, SafetyError | StoreError)  # what others say may quote what they were given
        _log.warning("%d %s were not kept: %s", count, what, error if known else type(error).__name__)


def _seal_all(seal: Seal, batch: list[_Waiting]) -> list[PromptSample]:
    return [
        new_sample(
            each.principal.owner,
            each.request_id,
            each.model,
            each.created_at,
            seal.seal(msgspec.json.encode(_redacted(msgspec.json.decode(each.plain)))),
            each.event_id,
        )
        for each in batch
    ]


def _seal_answers(seal: Seal, batch: list[_Answer]) -> dict[str, bytes]:
    return {each.event_id: seal.seal(redact(each.plain.decode()).encode()) for each in batch}


def _redacted(value: Any) -> Any:
    """JSON's data without the personal data in its texts."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, list):
        return [_redacted(each) for each in value]
    if isinstance(value, dict):
        return {key: _redacted(each) for key, each in value.items()}
    return value
