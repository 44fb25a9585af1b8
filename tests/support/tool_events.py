"""What a client puts together from the events of a parser of tool calls, at every split of the text."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

from kvarn.text.tool_calls.events import TextDelta, ToolCallArguments, ToolCallStart, ToolEvent
from kvarn.text.tool_calls.formats import ToolFormat

Seen = list[tuple[str, ...]]
"""`("text", text)` and `("call", name, arguments)`, in order."""


def joined(events: Sequence[ToolEvent]) -> Seen:
    """The events put together; checks that calls are numbered and that their parts come in order."""
    seen: Seen = []
    calls = 0
    for event in events:
        match event:
            case TextDelta(text):
                assert text
                seen.append(("text", seen.pop()[1] + text if seen and seen[-1][0] == "text" else text))
            case ToolCallStart(index, _, name):
                assert index == calls
                calls += 1
                seen.append(("call", name, ""))
            case ToolCallArguments(index, delta):
                assert index == calls - 1 and delta
                seen.append(("call", seen[-1][1], seen.pop()[2] + delta))
    return seen


def run(
    kind: ToolFormat,
    parts: Sequence[str],
    names: Collection[str] | None = None,
    *,
    opening: str = "",
    max_calls: int | None = None,
) -> Seen:
    """What comes of a text that arrives in these parts."""
    parser = kind.make_parser(names, opening=opening, max_calls=max_calls)
    return joined([event for part in parts for event in parser.push(part)] + parser.flush())


def at_every_split(kind: ToolFormat, text: str, names: Collection[str] | None = None, **options: object) -> Seen:
    """What comes of a text; the same however it is cut."""
    whole = run(kind, [text], names, **options)
    assert run(kind, list(text), names, **options) == whole
    for cut in range(len(text) + 1):
        assert run(kind, [text[:cut], text[cut:]], names, **options) == whole, (text[:cut], text[cut:])
    return whole


def cut_at(text: str, cuts: Sequence[int]) -> list[str]:
    """The text in parts that begin at `cuts` (taken modulo its length)."""
    bounds = sorted({0, *(cut % (len(text) + 1) for cut in cuts), len(text)})
    return [text[start:end] for start, end in itertools.pairwise(bounds)]
