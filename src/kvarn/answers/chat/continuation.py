"""The prompt of a conversation's next turn, in the tokens that the turn before it has cached.

A template writes the model's answer again as text, which is tokenized anew. A model, all the more one whose call is
kept to a schema, may have written the same text in other tokens: the engine would find its blocks up to there only.

    before   prompt of the last turn · what the model wrote
    now      prompt of the last turn · the same text, perhaps in other tokens · results of tools · ...
    given    before                                                          · results of tools · ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]


def continue_tokens(before: Sequence[int], now: Sequence[int], decode: Decode) -> list[int]:
    """The tokens of `now`, the first of them replaced by those of `before`, where both begin with the same text and a
    token of `now` ends where that does; else `now`. `decode` shows special tokens, too."""
    same = 0
    while same < min(len(before), len(now)) and before[same] == now[same]:
        same += 1
    if same == len(before) or not before:
        return list(now)
    wanted = decode(before[same:])
    low, high = 0, min(len(now) - same, len(wanted.encode("utf-8", "replace")) + 1)
    while low < high:
        middle = (low + high) // 2
        if len(decode(now[same : same + middle])) < len(wanted):
            low = middle + 1
        else:
            high = middle
    end = same + low
    return [*before, *now[end:]] if decode(now[same:end]) == wanted else list(now)
