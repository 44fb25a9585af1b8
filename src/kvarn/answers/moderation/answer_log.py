"""Answers to the prompts that the log of prompts keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvarn.answers.choice import ChoiceDelta
from kvarn.answers.observer import AnswerListener, Observer
from kvarn.answers.turn import Turn
from kvarn.safety.prompt_log import PromptLog

if TYPE_CHECKING:
    from kvarn.answers.question import Question

_MAX_CHARS = 16 * 1024


class AnswerLog(Observer):
    """Hears the answers to prompts that were kept, and no others."""

    def __init__(self, prompts: PromptLog) -> None:
        self._prompts = prompts

    def listen(self, turn: Turn, question: Question[Any, Any]) -> AnswerListener | None:
        return _Heard(self._prompts, turn.id) if self._prompts.wants_answer(turn.id) else None


class _Heard:
    """The beginning of the first choice of one answer."""

    def __init__(self, prompts: PromptLog, event_id: str) -> None:
        self._prompts = prompts
        self._event_id = event_id
        self._texts: list[str] = []
        self._room = _MAX_CHARS

    def take(self, delta: ChoiceDelta) -> None:
        if delta.index == 0 and self._room > 0 and delta.text:
            self._texts.append(delta.text[: self._room])
            self._room -= len(delta.text)

    def end(self, error: BaseException | None) -> None:
        self._prompts.answered(self._event_id, "".join(self._texts))
