"""Protocol of whoever watches answers: samples of a rollout, copies of requests for comparison."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Protocol

from kvarn.answers.choice import ChoiceDelta

if TYPE_CHECKING:
    from kvarn.answers.question import Question
    from kvarn.answers.record import RequestRecord
    from kvarn.answers.turn import Deltas, Turn


class AnswerListener(Protocol):
    """Hears one answer."""

    def take(self, delta: ChoiceDelta) -> None:
        """Hear a delta before its reader does."""
        ...

    def end(self, error: BaseException | None) -> None:
        """Hear the end. None: the answer is whole. `GeneratorExit` and `CancelledError`: nobody reads on."""
        ...


class Observer(Protocol):
    """Watches the answers of a gateway process. The default methods watch nothing."""

    def needs_seed(self, record: RequestRecord) -> bool:
        """Whether the request will be repeated, and must therefore have a seed."""
        return False

    def listen(self, turn: Turn, question: Question[Any, Any]) -> AnswerListener | None:
        """Begin to hear an answer; None: this one is of no interest. `question` asks for the same again."""
        return None

    def not_begun(self, record: RequestRecord, model: str, error: Exception) -> None:
        """Hear that a model could not begin an answer."""
        return


def observed(observers: Sequence[Observer], turn: Turn, question: Question[Any, Any], deltas: Deltas) -> Deltas:
    """The deltas, heard in order by every observer that is interested in them."""
    listeners = [each for observer in observers if (each := observer.listen(turn, question)) is not None]
    return _heard(listeners, deltas) if listeners else deltas


async def _heard(listeners: Sequence[AnswerListener], deltas: Deltas) -> Deltas:
    ended: BaseException | None = None
    try:
        async with aclosing(deltas):
            async for delta in deltas:
                for listener in listeners:
                    listener.take(delta)
                yield delta
    except BaseException as error:
        ended = error
        raise
    finally:
        for listener in listeners:
            listener.end(ended)
