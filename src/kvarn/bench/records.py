"""Record of one request, as the client saw it.

Times are seconds of one monotonic clock, counted from the start of the run. Token counts are the server's (`usage`).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec


class ErrorKind(StrEnum):
    """Why a request failed. HTTP statuses stand beside these as `http_429`, `http_503`, ..."""

    CONNECT = "connect"
    TIMEOUT = "timeout"
    BROKEN_STREAM = "broken_stream"
    """The connection ended before the answer did."""
    ERROR_IN_STREAM = "error_in_stream"
    """The server sent an error object, or `finish_reason` `abort` or `error`, after the status 200."""
    BAD_RESPONSE = "bad_response"
    """Not HTTP, not server-sent events, or not JSON in them."""
    NO_USAGE = "no_usage"
    """The stream ended without `usage`: its tokens cannot be counted honestly."""
    NO_TOKENS = "no_tokens"


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """One event of the stream that brought output."""

    time_s: float
    characters: int
    closing: bool = False
    """It carries `finish_reason` and no text: perhaps the last token, perhaps none."""


class Record(msgspec.Struct, kw_only=True):
    """One request from its due time to its end."""

    index: int
    scheduled_s: float
    """Time at which it was due. All latencies count from here, so a late generator cannot flatter the server."""
    sent_s: float
    end_s: float = 0.0
    asked_output_tokens: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int | None = None
    """None where the server does not say."""
    chunk_times: list[float] = []
    chunk_tokens: list[int] = []
    """Tokens each chunk is taken to have brought; sums to `output_tokens`."""
    error: str | None = None
    """An `ErrorKind` or `http_<status>`; None when the request succeeded."""
    message: str = ""

    @property
    def ttft_s(self) -> float:
        """Time to first token. Needs a chunk."""
        return self.chunk_times[0] - self.scheduled_s

    @property
    def tpot_s(self) -> float | None:
        """Mean gap after the first token: `(t_last - t_first) / (output_tokens - 1)`; None below two tokens."""
        if self.output_tokens < 2:
            return None
        return (self.chunk_times[-1] - self.chunk_times[0]) / (self.output_tokens - 1)

    @property
    def e2e_s(self) -> float:
        """From due to the last token."""
        return self.chunk_times[-1] - self.scheduled_s

    @property
    def lag_s(self) -> float:
        """Delay of the generator itself."""
        return self.sent_s - self.scheduled_s

    def inter_token_gaps(self) -> list[float]:
        """`output_tokens - 1` gaps in seconds whose mean is TPOT.

        A chunk of k tokens that came g seconds after the one before counts as k gaps of g/k; the further tokens of the
        first chunk as gaps of 0.
        """
        gaps = [0.0] * (self.chunk_tokens[0] - 1)
        for place in range(1, len(self.chunk_times)):
            tokens = self.chunk_tokens[place]
            gap = self.chunk_times[place] - self.chunk_times[place - 1]
            gaps.extend([gap / tokens] * tokens)
        return gaps

    def chunk_gaps(self) -> list[float]:
        """Seconds between one chunk and the next: the stalls a reader sees, however many tokens each brought."""
        return [late - early for early, late in zip(self.chunk_times, self.chunk_times[1:], strict=False)]


def keep_chunks(record: Record, chunks: Sequence[Chunk]) -> None:
    """Give `record` its chunks, each with its share of `record.output_tokens`.

    The count is the server's; only its spread over chunks is inferred, by their characters: each chunk has at least
    one token, the surplus goes where the text is. A closing chunk without text counts only if a token is left for it,
    and chunks that no token is left for are passed over.
    """
    kept = list(chunks)
    if kept and kept[-1].closing and record.output_tokens < len(kept):
        kept.pop()
    if record.output_tokens < len(kept):
        kept = [chunk for chunk in kept if chunk.characters] or kept
    tokens = spread_tokens([chunk.characters for chunk in kept], record.output_tokens)
    pairs = [(chunk.time_s, count) for chunk, count in zip(kept, tokens, strict=True) if count]
    record.chunk_times = [time for time, _ in pairs]
    record.chunk_tokens = [count for _, count in pairs]


def spread_tokens(characters: Sequence[int], tokens: int) -> list[int]:
    """Split `tokens` over chunks in proportion to their characters, at least one each where there are enough.

    Largest remainders, ties to the earlier chunk; the sum is exactly `tokens`.
    """
    if not characters:
        return []
    least = 1 if tokens >= len(characters) else 0
    surplus = tokens - least * len(characters)
    weights = [max(0, count - least) for count in characters]
    if not any(weights):
        weights = [1] * len(characters)
    whole = sum(weights)
    shares = [surplus * weight / whole for weight in weights]
    counts = [least + int(share) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda place: int(shares[place]) - shares[place])
    for place in by_remainder[: tokens - sum(counts)]:
        counts[place] += 1
    return counts
