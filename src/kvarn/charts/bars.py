"""Bars of parts that add up to a whole, as HTML: they keep their text at any width."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import msgspec

TONES = (1, 2, 3, 5, 6, 7, 8)
"""Tones of parts; 4 is that of what is wrong."""


class Piece(msgspec.Struct, frozen=True):
    """A part: its name, size, and the text of its size."""

    name: str
    value: float
    text: str


def stacked_bar(title: str, total: str, pieces: Sequence[Piece]) -> str:
    """One bar with its legend."""
    full = sum(piece.value for piece in pieces) or 1.0
    drawn, named = [], []
    for index, piece in enumerate(pieces):
        tone = f"tone-{TONES[index % len(TONES)]}"
        label = escape(f"{piece.name}: {piece.text}")
        drawn.append(f'<i class="{tone}" style="width:{100 * piece.value / full:.3f}%" title="{label}"></i>')
        named.append(f'<span class="key {tone}">{escape(piece.name)} <b>{escape(piece.text)}</b></span>')
    return (
        f'<figure class="stack"><figcaption><b>{escape(title)}</b> <small>{escape(total)}</small></figcaption>'
        f'<div class="bar" role="img" aria-label="{escape(title)}">{"".join(drawn)}</div>'
        f'<div class="keys">{"".join(named)}</div></figure>'
    )


def compared_bars(title: str, rows: Sequence[Piece]) -> str:
    """A bar for each row, the longest over the full width."""
    longest = max((row.value for row in rows), default=0.0) or 1.0
    drawn = "".join(
        f'<div class="row"><span>{escape(row.name)}</span><div class="bar"><i class="tone-1" '
        f'style="width:{100 * row.value / longest:.3f}%"></i></div><b>{escape(row.text)}</b></div>'
        for row in rows
    )
    return f'<figure class="rows"><figcaption><b>{escape(title)}</b></figcaption>{drawn}</figure>'
