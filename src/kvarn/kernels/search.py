"""Search for an earlier place of a text's end, for n-gram speculation."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]


def longest_match_reference(text: Tokens, tail: Tokens) -> tuple[int, int]:
    """Find the longest end of `tail` in `text`, the latest where it stands there several times.

    Returns the position after it, and its tokens; (0, 0) where not even the last token is found.
    """
    if not len(tail):
        return 0, 0
    places, length = np.flatnonzero(text == tail[-1]), 1
    if not len(places):
        return 0, 0
    while length < len(tail):
        reaching = places[places >= length]
        going_on = reaching[text[reaching - length] == tail[-1 - length]]
        if not len(going_on):
            break
        places, length = going_on, length + 1
    return int(places[-1]) + 1, length


try:
    from kvarn.kernels.cpu._native import longest_match
except ImportError:  # not installed
    longest_match = longest_match_reference

__all__ = ["Tokens", "longest_match", "longest_match_reference"]
