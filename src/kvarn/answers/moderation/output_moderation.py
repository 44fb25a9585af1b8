"""Looks at an answer while it is written, and ends it where it is flagged."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Awaitable, Callable

from kvarn.answers.choice import ChoiceDelta
from kvarn.safety.verdict import Verdict
from kvarn.text.logprobs import join_logprobs

_CONTEXT_CHARS = 1000  # characters that were shown and are looked at again with those that follow


class OutputModeration:
    """Watches one choice: deltas go in, those that may be shown come out.

    Shown is what has been looked at together with the `hold_back` characters after it; an unfinished last word is not
    looked at, and not shown. Whole deltas are held, so that text, token ids and log-probabilities stay together.

    Args:
        judge: Gives the verdict on a text.
        look_every: Characters that may come before the next look.
        hold_back: Characters that are looked at but not yet shown.
    """

    def __init__(self, judge: Callable[[str], Awaitable[Verdict]], look_every: int, hold_back: int) -> None:
        self._judge = judge
        self._look_every = look_every
        self._hold_back = hold_back
        self._held: deque[ChoiceDelta] = deque()
        self._text = ""
        self._unseen = 0  # characters at the end of the text that no verdict was on
        self._grown_by = 0  # characters since the last look

    async def look(self, delta: ChoiceDelta) -> ChoiceDelta | None:
        """Take the choice's next delta; returns what may be shown now, joined. A flagged choice ends with it. Raises
        `ApiError`: the answer cannot be looked at now."""
        self._held.append(delta)
        written = delta.written
        self._text += written
        self._unseen += len(written)
        self._grown_by += len(written)
        ended = delta.finish_reason is not None
        if not ended and self._grown_by < self._look_every:
            return None
        if self._unseen and (seen := self._text if ended else _whole_words(self._text)):
            verdict = await self._judge(seen)
            self._unseen, self._grown_by = len(self._text) - len(seen), 0
            if verdict.flagged:
                return self._end(verdict)
        return _join(self._release(0 if ended else max(self._hold_back, self._unseen)))

    def _release(self, keep: int) -> list[ChoiceDelta]:
        """Deltas that have at least `keep` characters after them."""
        after = sum(len(delta.written) for delta in self._held)
        shown = []
        while self._held and (after := after - len(self._held[0].written)) >= keep:
            shown.append(self._held.popleft())
        kept = sum(len(delta.written) for delta in self._held)
        self._text = self._text[-(kept + _CONTEXT_CHARS) :]
        return shown

    def _end(self, verdict: Verdict) -> ChoiceDelta:
        first = self._held[0]
        why = ", ".join(verdict.flagged)
        self._held.clear()
        return ChoiceDelta(
            first.index,
            prompt_positions=first.prompt_positions,
            finish_reason="content_filter",
            refusal=f"The answer was ended here by this server's moderation ({why}).",
        )


def _whole_words(text: str) -> str:
    """Without a last word that may go on: `commit` is not `committee`. A script without spaces has only such."""
    last = re.search(r"(?:\A|\s)\S{0,24}\Z", text)
    return text if last is None else text[: last.start()]


def _join(deltas: list[ChoiceDelta]) -> ChoiceDelta | None:
    if len(deltas) < 2:
        return deltas[0] if deltas else None
    last = deltas[-1]
    whole = ChoiceDelta(
        last.index,
        token_ids=[token for delta in deltas for token in delta.token_ids],
        reasoning_tokens=sum(delta.reasoning_tokens for delta in deltas),
        positions=[position for delta in deltas for position in delta.positions],
        prompt_positions=next((delta.prompt_positions for delta in deltas if delta.prompt_positions is not None), None),
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
    )
    if any(delta.tool_calls for delta in deltas):
        whole.parts = [part for delta in deltas for part in (delta.parts or [delta.text])]
        whole.text = "".join(delta.text for delta in deltas)
    else:
        whole.write([part for delta in deltas for part in delta.text_parts])
    logprobs = [each for delta in deltas for each in delta.logprobs or ()]
    whole.logprobs = logprobs or None
    completion = [delta.completion_logprobs for delta in deltas if delta.completion_logprobs is not None]
    whole.completion_logprobs = join_logprobs(completion) if completion else None
    return whole
