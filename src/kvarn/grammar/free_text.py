"""The text of any kind that may stand before what a grammar describes: a model's reasoning."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvarn.wire.messages import Grammar


class FreeText:
    """Looks for the string that ends it, token by token. `grammar` says which strings end it, and which tokens begin
    it."""

    def __init__(self, grammar: Grammar, bytes_of: Callable[[int], bytes]) -> None:
        self.opened_by = frozenset(grammar.opened_by)
        self.undecided = bool(grammar.opened_by)
        """Whether there may be none: its first token decides."""
        self._ends = [end.encode() for end in grammar.after]
        self._longest = max(map(len, self._ends))
        self._bytes_of = bytes_of
        self._tail = b""

    def copy(self) -> FreeText:
        """One that goes on from here by itself."""
        other = FreeText.__new__(FreeText)
        for name in ("opened_by", "undecided", "_ends", "_longest", "_bytes_of", "_tail"):
            setattr(other, name, getattr(self, name))
        return other

    def take(self, token: int) -> bytes | None:
        """Go on by a token. Returns what of it stands behind the end, where the text ends with it, else None."""
        self.undecided = False
        text = self._tail + self._bytes_of(token)
        found = [(place + len(end), len(end)) for end in self._ends if (place := text.find(end)) >= 0]
        if found:
            return text[min(found)[0] :]
        self._tail = text[-self._longest :]
        return None

    def follow(self, tokens: Sequence[int]) -> tuple[int, bytes]:
        """Go on by tokens up to its end. Returns how many of the positions before, between and behind them belong to
        it, and what `take` returned at its end."""
        for count, token in enumerate(tokens, start=1):
            rest = self.take(token)
            if rest is not None:
                return count, rest
        return len(tokens) + 1, b""
