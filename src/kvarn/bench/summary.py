"""From records to figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from kvarn.bench.driver import Outcome
from kvarn.bench.records import Record


class Distribution(msgspec.Struct, frozen=True):
    """A latency in milliseconds; percentiles interpolate linearly between order statistics."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of_seconds(cls, seconds: Sequence[float]) -> Distribution | None:
        """None where there is nothing to tell of."""
        if not seconds:
            return None
        values = np.asarray(seconds, dtype=np.float64) * 1000
        p50, p90, p95, p99 = (float(value) for value in np.percentile(values, [50, 90, 95, 99]))
        return cls(len(values), float(values.mean()), p50, p90, p95, p99, float(values.max()))


class Slo(msgspec.Struct, frozen=True, kw_only=True):
    """Targets a request must meet to be good; None asks nothing."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    def met_by(self, record: Record) -> bool:
        """True where a successful request kept both targets. One-token answers have no TPOT to miss."""
        tpot = record.tpot_s
        in_time = self.ttft_ms is None or record.ttft_s * 1000 <= self.ttft_ms
        return in_time and (self.tpot_ms is None or tpot is None or tpot * 1000 <= self.tpot_ms)


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    slo: Slo
    good: int
    ratio: float
    """Over all finished requests, failed ones included."""
    requests_per_s: float


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a run. Latencies are of successful requests, in milliseconds, from the due time."""

    duration_s: float
    interrupted: bool
    finished: int
    succeeded: int
    failed: int
    unfinished: int
    errors: dict[str, int]
    """Failed requests by kind."""
    wrong_length: int
    """Successful requests whose output is not as long as asked for: the server does not know `ignore_eos`."""
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None
    """None where the server never told."""
    cached_ratio: float | None
    """Cached over all prompt tokens."""
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    """Prompt and output tokens."""
    tokens_per_chunk: float
    peak_concurrency: int
    ttft_ms: Distribution | None
    tpot_ms: Distribution | None
    itl_ms: Distribution | None
    """Gaps between tokens; a chunk of several tokens has its gap spread over them."""
    chunk_gap_ms: Distribution | None
    """Gaps between chunks: the stalls a reader sees."""
    e2e_ms: Distribution | None
    lag_ms: Distribution | None
    """Delay of sending, over all finished requests."""
    generator_cpu_share: float
    """Processor seconds of the load generator per second of the run."""
    goodput: Goodput | None
    """None where no target was given."""


def summarise(outcome: Outcome, slo: Slo | None = None) -> Summary:
    """The figures of `outcome`, with goodput where `slo` names a target."""
    good = [record for record in outcome.records if record.error is None]
    duration = outcome.duration_s or 1e-9
    prompt_tokens, output_tokens = sum(each.prompt_tokens for each in good), sum(each.output_tokens for each in good)
    told = [each.cached_tokens for each in good if each.cached_tokens is not None]
    chunks = sum(len(each.chunk_times) for each in good)
    return Summary(
        duration_s=outcome.duration_s,
        interrupted=outcome.interrupted,
        finished=len(outcome.records),
        succeeded=len(good),
        failed=len(outcome.records) - len(good),
        unfinished=outcome.unfinished,
        errors=dict(Counter(str(each.error) for each in outcome.records if each.error is not None).most_common()),
        wrong_length=sum(each.output_tokens != each.asked_output_tokens for each in good),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        cached_tokens=sum(told) if told else None,
        cached_ratio=sum(told) / prompt_tokens if told and prompt_tokens else None,
        requests_per_s=len(good) / duration,
        output_tokens_per_s=output_tokens / duration,
        total_tokens_per_s=(prompt_tokens + output_tokens) / duration,
        tokens_per_chunk=output_tokens / chunks if chunks else 0.0,
        peak_concurrency=peak_concurrency(outcome.records),
        ttft_ms=Distribution.of_seconds([each.ttft_s for each in good]),
        tpot_ms=Distribution.of_seconds([tpot for each in good if (tpot := each.tpot_s) is not None]),
        itl_ms=Distribution.of_seconds([gap for each in good for gap in each.inter_token_gaps()]),
        chunk_gap_ms=Distribution.of_seconds([gap for each in good for gap in each.chunk_gaps()]),
        e2e_ms=Distribution.of_seconds([each.e2e_s for each in good]),
        lag_ms=Distribution.of_seconds([each.lag_s for each in outcome.records]),
        generator_cpu_share=outcome.generator_cpu_s / duration,
        goodput=_goodput(outcome, good, slo, duration),
    )


def concurrency_steps(records: Iterable[Record]) -> list[tuple[float, int]]:
    """Requests in flight after each start and end: `(seconds, number)`, in order of time."""
    changes = sorted((time, change) for each in records for time, change in ((each.sent_s, 1), (each.end_s, -1)))
    steps, running = [], 0
    for time, change in changes:
        running += change
        steps.append((time, running))
    return steps


def peak_concurrency(records: Iterable[Record]) -> int:
    return max((running for _, running in concurrency_steps(records)), default=0)


def _goodput(outcome: Outcome, good: Sequence[Record], slo: Slo | None, duration: float) -> Goodput | None:
    if slo is None or (slo.ttft_ms is None and slo.tpot_ms is None):
        return None
    met = sum(slo.met_by(record) for record in good)
    return Goodput(slo=slo, good=met, ratio=met / max(1, len(outcome.records)), requests_per_s=met / duration)
