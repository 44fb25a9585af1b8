"""Numbers in words, as a person would say them."""

from __future__ import annotations

_SMALL = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def count(number: int, noun: str, kind: str = "") -> str:
    """`a 6,200-token prompt`, `two prompts`, `31 answers`. `kind` stands before the noun."""
    if number == 1:
        return f"{_article(kind or noun)} {kind}{noun}"
    return f"{_SMALL[number] if number < len(_SMALL) else f'{number:,}'} {kind}{noun}s"


def _article(word: str) -> str:
    """The article that a word is said with; of numbers, eight, eleven and eighteen begin with a vowel."""
    return "an" if word[0] in "aeio" or word.startswith(("8", "11-", "18-", "11,", "18,")) else "a"


def joined(one: str, other: str) -> str:
    return f"{one} and {other}"


def seconds(value: float) -> str:
    """`2.1 s`, `340 ms`, `4.2 ms`, `3 min 20 s`."""
    if value < 0.00995:
        return f"{value * 1000:.1f} ms"
    if value < 0.9995:
        return f"{value * 1000:.0f} ms"
    if value < 99.5:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest} s" if rest else f"{minutes} min"
