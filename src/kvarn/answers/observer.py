"""Observers of answers: samples of a rollout, copies of requests for comparison."""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from kvarn.answers.choice import ChoiceDelta

if TYPE_CHECKING:
    from kvarn.answers.question import Question
    from kvarn.answers.record import RequestRecord
    from kvarn.answers.turn import Deltas, Turn

_log = logging.getLogger("kvarn.answers")


class AnswerListener(Protocol):
    def take(self, delta: ChoiceDelta) -> None: ...

    def end(self, error: BaseException | None) -> None:
        """Hear the end. None: the answer is whole. `GeneratorExit` and `CancelledError`: its reader is gone."""
        ...


class Observer(Protocol):
    """Watches the answers of a gateway process. The default methods watch nothing."""

    def needs_seed(self, record: RequestRecord) -> bool:
        """Whether the request will be repeated, and must therefore have a seed."""
        return False

    def listen(self, turn: Turn, question: Question[Any, Any]) -> AnswerListener | None:
        """Begin to hear an answer; None: this one is of no interest. `question` asks for the same again."""
        return None

    def ended(self, record: RequestRecord, name: str, method: str = "", route: str = "") -> None:
        """Hear that a request is over: its last byte is sent, its turns are settled. `name` says what it was, `method`
        and `route` are those of HTTP."""
        return

    def not_begun(self, record: RequestRecord, model: str, error: Exception) -> None:
        return


def observed(observers: Sequence[Observer], turn: Turn, question: Question[Any, Any], deltas: Deltas) -> Deltas:
    """The deltas, heard in order by every observer that is interested in them. A listener that fails hears no more:
    the answer goes on."""
    listeners: list[AnswerListener] = []
    for observer in observers:
        with _isolated(observer):
            listener = observer.listen(turn, question)
            if listener is not None:
                listeners.append(listener)
    return _heard(listeners, deltas) if listeners else deltas


def tell_ended(
    observers: Sequence[Observer], record: RequestRecord, name: str, method: str = "", route: str = ""
) -> None:
    """Tell every observer that a request is over."""
    for observer in observers:
        with _isolated(observer):
            observer.ended(record, name, method, route)


def tell_not_begun(observers: Sequence[Observer], record: RequestRecord, model: str, error: Exception) -> None:
    for observer in observers:
        with _isolated(observer):
            observer.not_begun(record, model, error)


@contextmanager
def _isolated(observer: object) -> Generator[None]:
    try:
        yield
    except Exception:
        _log.exception("%s failed to observe an answer", type(observer).__name__)


async def _heard(listeners: list[AnswerListener], deltas: Deltas) -> Deltas:
    ended: BaseException | None = None
    try:
        async with aclosing(deltas):
            async for delta in deltas:
                for listener in list(listeners):
                    try:
                        listener.take(delta)
                    except Exception:
                        _log.exception("%s failed on a delta and gets no more of the answer", type(listener).__name__)
                        listeners.remove(listener)
                yield delta
    except BaseException as error:
        ended = error
        raise
    finally:
        for listener in listeners:
            with _isolated(listener):
                listener.end(ended)
