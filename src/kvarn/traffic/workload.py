"""Workload: prompts as recipes of seeded segments, and synthetic requests made of them.

A prompt is a list of segments; equal segments give equal tokens, so prompts share exactly the prefixes that their
segments share. Tokens are made only when a request is about to be sent: a trace of a hundred million tokens costs
nothing until then.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import islice

import msgspec
import numpy as np

from kvarn.traffic.arrivals import ArrivalPattern, arrivals

WARM_UP_KEY = 1 << 62
"""Segment keys of warm-up prompts start here, far from those of any measured request."""

_WORDS = tuple(
    """
    time year people way day man thing woman life child world school state family student group country problem hand
    part place case week company system program question work number night point home water room mother area money
    story fact month lot right study book eye job word business issue side kind head house service friend father power
    hour game line end member law car city name team minute idea body back parent face others level office door health
    """.split()  # noqa: SIM905  a list of words reads as words
)


class Vocabulary(msgspec.Struct, frozen=True):
    """Token ids a prompt may be made of: `low <= id < high`. Special tokens should lie outside."""

    low: int = 300
    high: int = 4000

    @classmethod
    def parse(cls, text: str) -> Vocabulary:
        """Read `lo:hi`; raises ValueError."""
        low, separator, high = text.partition(":")
        if not separator or not low.isdigit() or not high.isdigit() or int(low) >= int(high):
            raise ValueError(f"{text!r} is not a range of token ids: write it as lo:hi, such as 300:4000")
        return cls(int(low), int(high))

    def __str__(self) -> str:
        return f"{self.low}:{self.high}"


class Lengths(msgspec.Struct, frozen=True):
    """A number of tokens: fixed where `low == high`, else uniform over both ends and all between."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str) -> Lengths:
        """Read `n` or `lo:hi`; raises ValueError."""
        low, _, high = text.partition(":")
        high = high or low
        if not low.isdigit() or not high.isdigit() or not 1 <= int(low) <= int(high):
            raise ValueError(f"{text!r} is not a number of tokens: write it as 128 or as 64:256")
        return cls(int(low), int(high))

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}:{self.high}"

    def draw(self, count: int, generator: np.random.Generator) -> list[int]:
        drawn: list[int] = generator.integers(self.low, self.high, size=count, endpoint=True).tolist()
        return drawn


class Segment(msgspec.Struct, frozen=True):
    """A run of tokens named by its key: the same key gives the same tokens, a shorter length a prefix of them."""

    key: int
    length: int

    def token_ids(self, vocabulary: Vocabulary, seed: int) -> list[int]:
        span = vocabulary.high - vocabulary.low
        ids: list[int] = (vocabulary.low + _generator(seed, self.key).integers(span, size=self.length)).tolist()
        if ids:
            ids[0] = vocabulary.low + self.key % span
        return ids

    def text(self, seed: int) -> str:
        """Common English words, one for each token; tokenizers make about one token of each. Ends with a space."""
        chosen = _generator(seed, self.key).integers(len(_WORDS), size=self.length)
        words = [_WORDS[word] for word in chosen]
        if words:
            words[0] = str(self.key)
        return " ".join(words) + " "


def cut(segments: Iterable[Segment], length: int) -> tuple[Segment, ...]:
    """The first tokens of a prompt."""
    kept: list[Segment] = []
    for segment in segments:
        if length <= 0:
            break
        kept.append(Segment(segment.key, min(segment.length, length)))
        length -= segment.length
    return tuple(kept)


class BenchRequest(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    segments: tuple[Segment, ...]
    output_tokens: int
    arrival_s: float | None = None
    """Seconds after the start of the run when it is due; None in a closed loop."""
    session: str = ""
    """Name of the session whose turn it is."""

    @property
    def prompt_tokens(self) -> int:
        """Tokens the recipe makes; the server's own count stands in the record."""
        return sum(segment.length for segment in self.segments)

    def token_ids(self, vocabulary: Vocabulary, seed: int) -> list[int]:
        return [token for segment in self.segments for token in segment.token_ids(vocabulary, seed)]

    def text(self, seed: int) -> str:
        """The prompt as text."""
        return "".join(segment.text(seed) for segment in self.segments).rstrip()


def synthetic_requests(
    *,
    count: int,
    prompt: Lengths,
    output: Lengths,
    shared_prefix: int = 0,
    seed: int = 0,
    arrivals: Sequence[float] | None = None,
) -> list[BenchRequest]:
    """Requests with a shared prefix (`shared_prefix` tokens, the same in all) and `prompt` tokens of their own.

    `arrivals` are seconds after the start, one for each request; None for a closed loop.
    """
    generator = np.random.default_rng([seed, count])
    prompts, outputs = prompt.draw(count, generator), output.draw(count, generator)
    prefix = (Segment(key=0, length=shared_prefix),) if shared_prefix else ()
    return [
        BenchRequest(
            index=index,
            segments=(*prefix, Segment(key=index + 1, length=prompts[index])),
            output_tokens=outputs[index],
            arrival_s=None if arrivals is None else arrivals[index],
        )
        for index in range(count)
    ]


def warm_up_requests(requests: Sequence[BenchRequest], count: int) -> list[BenchRequest]:
    """`count` requests shaped like the first of `requests`.

    Segments that every request begins with (a shared prefix) are kept, so that one warm request fills the cache with
    them; the rest is fresh, so that nothing that is measured is found in the cache because of the warm-up.
    """
    if not requests:
        return []
    first = requests[0]
    shared = 0
    if len(requests) > 1:
        while all(
            shared < len(each.segments) - 1 and each.segments[shared] == first.segments[shared] for each in requests
        ):
            shared += 1
    own = sum(segment.length for segment in first.segments[shared:])
    return [
        BenchRequest(
            index=-1 - turn,
            segments=(*first.segments[:shared], Segment(key=WARM_UP_KEY + turn, length=own)),
            output_tokens=first.output_tokens,
        )
        for turn in range(count)
    ]


def poisson_arrivals(
    rate: float, *, seed: int, duration_s: float | None = None, count: int | None = None
) -> list[float]:
    """Arrival times in seconds of a Poisson process of `rate` requests/s.

    Ends after `duration_s` or `count` arrivals, whichever comes first; at least one must be given (ValueError).
    """
    if duration_s is None and count is None:
        raise ValueError("an open loop needs an end: give a duration or a number of requests")
    moments = arrivals(ArrivalPattern(), rate, seed, math.inf if duration_s is None else duration_s)
    return list(islice(moments, count))


def _generator(seed: int, key: int) -> np.random.Generator:
    return np.random.default_rng([seed, key])
