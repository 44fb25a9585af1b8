"""Reasoning as gpt-oss writes it: messages in channels, the format that OpenAI calls harmony.

    <|channel|>analysis<|message|>The user greets.<|end|><|start|>assistant<|channel|>final<|message|>Hello.<|return|>

The prompt ends with `<|start|>assistant`. A call is a message with a recipient, which stands before or after the
channel: ` to=functions.add<|channel|>commentary <|constrain|>json<|message|>{...}<|call|>`.
"""

from __future__ import annotations

import re

from kvarn.text.reasoning.splitter import Part, Reasoning, ReasoningPhase, ReasoningSplitter
from kvarn.text.stop_strings import overlap

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
_OPENERS = (START, CHANNEL, CONSTRAIN, MESSAGE, "to=")
_CLOSERS = (END, CALL, RETURN)
_BREAKS = (*_CLOSERS, START, CHANNEL)
_CHANNEL_NAME = re.compile(r"<\|channel\|>\s*(\w+)")
LONGEST_HEADER = 256
"""Characters within which a header must end, so that nothing is held for long that is not one."""


class HarmonySplitter(ReasoningSplitter):
    """Reads messages: those of the channel `analysis` are reasoning, others content, without their headers. A message
    to a tool stays as it is written, header included: a parser of tool calls reads it.

    Text where a header should stand is content. Messages of one kind are parted by a newline.
    """

    def __init__(self, phase: ReasoningPhase) -> None:
        super().__init__(phase)
        self._to_tool = False  # whether the message is given out as it is
        self._begun: set[type] = set()  # kinds of parts that have been given out
        self._new_message = False

    def _read(self, *, final: bool) -> list[Part]:
        parts: list[Part] = []
        while self._held:
            before = (self.phase, len(self._held))
            if self.phase is ReasoningPhase.BEFORE:
                self._read_header(parts, final)
            else:
                self._read_body(parts, final)
            if before == (self.phase, len(self._held)):
                break
        return parts

    def _read_header(self, parts: list[Part], final: bool) -> None:
        end = self._held.find(MESSAGE, 0, LONGEST_HEADER)
        text = self._held.lstrip()
        opened = text.startswith(_OPENERS)
        if opened and end >= 0:
            end += len(MESSAGE)
            header, self._held = self._held[:end], self._held[end:]
            self._begin(header, parts)
        elif final and (opened or not text):
            self._held = ""  # a header that was cut off says nothing
        elif (
            final
            or len(self._held) >= LONGEST_HEADER
            or not (opened or any(each.startswith(text) for each in _OPENERS))
        ):
            self._begin("", parts)
            self._give(self._held[:1], parts)  # so that what begins it cannot break it off again
            self._held = self._held[1:]

    def _begin(self, header: str, parts: list[Part]) -> None:
        channel = _CHANNEL_NAME.search(header)
        self._to_tool = "to=" in header
        self._new_message = True
        reasons = channel is not None and channel[1] == "analysis" and not self._to_tool
        self.phase = ReasoningPhase.INSIDE if reasons else ReasoningPhase.AFTER
        if self._to_tool:
            self._give(header, parts)

    def _read_body(self, parts: list[Part], final: bool) -> None:
        found = [(place, each) for each in _BREAKS if (place := self._held.find(each)) >= 0]
        if not found:
            certain = min(len(self._held) - overlap(self._held, each) for each in _BREAKS)
            end = len(self._held) if final else certain
            self._give(self._held[:end], parts)
            self._held = self._held[end:]
            return
        place, mark = min(found)
        closes = mark in _CLOSERS
        shown = place + (len(mark) if closes and self._to_tool else 0)
        self._give(self._held[:shown], parts)
        self._held = self._held[place + (len(mark) if closes else 0) :]
        self.phase = ReasoningPhase.BEFORE

    def _give(self, text: str, parts: list[Part]) -> None:
        if not text:
            return
        kind = Reasoning if self.phase is ReasoningPhase.INSIDE else str
        if self._new_message and kind in self._begun and not self._to_tool:
            text = "\n" + text
        self._new_message = False
        self._begun.add(kind)
        parts.append(kind(text))
