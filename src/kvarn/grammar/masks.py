"""The masks of the engine's requests (`kvarn.engine.request.TokenMask`): a grammar, and where each choice stands."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from kvarn.grammar.errors import GrammarError
from kvarn.grammar.mask_filler import Fill, MaskFiller
from kvarn.grammar.text import limits, readable
from kvarn.grammar.vocabulary import Vocabulary
from kvarn.wire.messages import Grammar, Submit

_KEPT = 128
"""Grammars that stay built, for requests that ask for the same: those used last."""
_BUILDERS = 2  # threads that build grammars


class GrammarMasks:
    """Makes the mask of each request that has a grammar, for one model. `vocabulary`: a text says why nothing can be
    enforced."""

    def __init__(self, vocabulary: Vocabulary | str, num_threads: int = 1) -> None:
        self._vocabulary = vocabulary
        self._built: OrderedDict[str, Future[LLMatcher]] = OrderedDict()
        self._builders = ThreadPoolExecutor(_BUILDERS, thread_name_prefix="kvarn-grammars")
        self._filler = None if isinstance(vocabulary, str) else MaskFiller(vocabulary.vocab_size, num_threads)

    def __call__(self, message: Submit) -> GrammarMask | None:
        if message.grammar is None:
            return None
        if isinstance(self._vocabulary, str) or self._filler is None:
            return GrammarMask.impossible(f"This model cannot keep to a grammar: {self._vocabulary}.")
        return GrammarMask(message.grammar, self._vocabulary, self._matcher(message.grammar.text), self._filler)

    def shutdown(self) -> None:
        self._builders.shutdown(cancel_futures=True)
        if self._filler is not None:
            self._filler.shutdown()

    def _matcher(self, text: str) -> Future[LLMatcher]:
        found = self._built.pop(text, None) or self._builders.submit(self._build, text)
        self._built[text] = found
        while len(self._built) > _KEPT:
            self._built.popitem(last=False)
        return found

    def _build(self, text: str) -> LLMatcher:
        assert isinstance(self._vocabulary, Vocabulary)
        matcher = LLMatcher(self._vocabulary.library, text, log_level=0, limits=limits())
        if matcher.is_error():
            raise GrammarError(readable(matcher.get_error()))
        return matcher


class GrammarMask:
    """Masks of the next tokens that one request allows. Not thread-safe: only the engine's loop uses it."""

    def __init__(
        self, grammar: Grammar, vocabulary: Vocabulary, matcher: Future[LLMatcher], filler: MaskFiller
    ) -> None:
        self._grammar = grammar
        self._vocabulary = vocabulary
        self._matcher = matcher
        self._filler = filler
        self._choices: dict[int, _Choice] = {}
        self._problem: str | None = None
        self._ends = packed(vocabulary.end_ids, vocabulary.vocab_size)
        self._no_end = ~self._ends
        self._opening = packed(grammar.opened_by, vocabulary.vocab_size) if grammar.opened_by else None

    @classmethod
    def impossible(cls, problem: str) -> GrammarMask:
        mask = cls.__new__(cls)
        mask._problem = problem
        mask._matcher = Future()
        return mask

    @property
    def ready(self) -> bool:
        return self._matcher.done()

    @property
    def problem(self) -> str | None:
        if self._problem is None and self._matcher.done() and (error := self._matcher.exception()) is not None:
            self._problem = f"The grammar cannot be enforced: {error}."
        return self._problem

    def forced(self, index: int, output_token_ids: list[int]) -> list[int]:
        choice = self._choice(index, output_token_ids)
        if choice.free is not None or self._problem is not None:
            return []
        rest = choice.rest_of_forced(output_token_ids)
        if not rest:
            choice.forced, choice.forced_at = choice.matcher.compute_ff_tokens(), choice.num_taken
            rest = list(choice.forced)
        return rest

    def pack(self, index: int, output_token_ids: list[int], proposals: list[int]) -> _RowMasks:
        choice, masks = self._choice(index, output_token_ids), _RowMasks()
        if self._problem is not None:
            masks.add([self._ends] * (len(proposals) + 1))
            return masks
        if choice.free is None:
            self._fill(masks, choice, choice.matcher, proposals)
            return masks
        free = choice.free.copy()
        undecided = free.undecided
        if undecided and not (proposals and proposals[0] in free.opened_by):
            self._fill(masks, choice, choice.matcher, proposals, self._opening)
            return masks
        count, rest = free.follow(proposals)
        # Copied before the filler has it.
        matcher = choice.matcher.deep_copy() if count <= len(proposals) else None
        if undecided:
            self._fill(masks, choice, choice.matcher, [], self._opening)
        masks.add([self._no_end] * (count - undecided))
        if matcher is not None:
            self._take_rest(matcher, rest)
            self._fill(masks, choice, matcher, proposals[count:])
        return masks

    def _fill(
        self,
        masks: _RowMasks,
        choice: _Choice,
        matcher: LLMatcher,
        proposals: list[int],
        added: npt.NDArray[np.int32] | None = None,
    ) -> None:
        """Add the masks from where a matcher stands. Behind an end token there are only more of them."""
        ends = self._vocabulary.end_ids
        until = next((place for place, token in enumerate(proposals) if token in ends), len(proposals))
        fill = Fill(matcher, proposals[:until], added, self._fail, self._ends)
        if matcher is choice.matcher:
            choice.fill = fill
        self._filler.submit(fill)
        masks.add(fill)
        masks.add([self._ends] * (len(proposals) - until))

    def _take_rest(self, matcher: LLMatcher, rest: bytes) -> None:
        if rest.strip() and not matcher.consume_tokens(self._vocabulary.library.tokenize_bytes(rest.lstrip())):
            self._fail(matcher.get_error())

    def _choice(self, index: int, outputs: list[int]) -> _Choice:
        choice = self._choices.get(index)
        if choice is None:
            free = FreeText(self._grammar, self._vocabulary.bytes_of) if self._grammar.after else None
            choice = self._choices[index] = _Choice(self._matcher.result().deep_copy(), free)
        if choice.fill is not None:
            choice.fill.wait()
            choice.fill = None
        surplus = choice.num_taken - len(outputs)
        if surplus > 0 and not choice.matcher.rollback(surplus):  # forced, but not drawn after all
            self._fail(choice.matcher.get_error())
        for token in outputs[choice.num_taken :]:
            self._take(choice, token)
        choice.num_taken = len(outputs)
        return choice

    def _take(self, choice: _Choice, token: int) -> None:
        free = choice.free
        if free is not None and not (free.undecided and token not in free.opened_by):
            rest = free.take(token)
            if rest is not None:
                choice.free = None
                self._take_rest(choice.matcher, rest)
            return
        choice.free = None
        if token in self._vocabulary.end_ids and choice.matcher.is_accepting():
            return  # drawn before the request's `min_tokens`, since nothing else can be
        if not choice.matcher.consume_token(token):
            self._fail(choice.matcher.get_error())

    def _fail(self, problem: str) -> None:
        if self._problem is None:
            self._problem = f"The answer cannot be kept to its grammar: {readable(problem)}"


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


@dataclass(slots=True)
class _Choice:
    matcher: LLMatcher
    free: FreeText | None
    """While the text before the grammar's lasts."""
    fill: Fill | None = None  # the masks that are being made with the matcher
    num_taken: int = 0  # tokens of output it has gone on by
    forced: list[int] = field(default_factory=list)
    """The tokens forced at the last query: a step takes only a part of a long text, and computing it again for each
    step would take milliseconds."""
    forced_at: int = 0  # `num_taken` then

    def rest_of_forced(self, outputs: list[int]) -> list[int]:
        passed = len(outputs) - self.forced_at
        if passed < 0 or outputs[self.forced_at :] != self.forced[:passed]:
            return []
        return self.forced[passed:]


class _RowMasks:
    def __init__(self) -> None:
        self._sources: list[tuple[Fill | list[npt.NDArray[np.int32]], int]] = []
        """Source of each position's mask, and the position in it."""

    def add(self, source: Fill | list[npt.NDArray[np.int32]]) -> None:
        self._sources += [(source, place) for place in range(len(source))]

    def __getitem__(self, position: int) -> memoryview:
        source, place = self._sources[position]
        found = source[place]
        return found if isinstance(found, memoryview) else np.ascontiguousarray(found).data


def packed(tokens: Sequence[int], vocab_size: int) -> npt.NDArray[np.int32]:
    mask = np.zeros(-(-vocab_size // 32) * 32, dtype=np.uint8)
    mask[list(tokens)] = 1
    return np.packbits(mask, bitorder="little").view(np.int32)
