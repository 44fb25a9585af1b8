"""The number of replicas of a model. Pure, on a clock that is passed in.

Work is counted where it arrives, never at the output: that saturates with the replicas there are, and would say that
they are enough. It is counted in seconds of one engine, by the engine's own model of its steps, so a replica's
capacity is one second of work a second.

    rate      arriving work a second, over the last half minute; over the last five minutes, if that is more
    foreseen  rate and its rise until a replica started now is ready
    needed    foreseen / target_utilization, and what waits spread over the time that a start takes

More are started at once. Fewer are wanted only when it is known that fewer have been enough for `scale_in_delay_s`, so
not right after the start; the reconciler drains those that are too many.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from kvarn.config.fleet import AutoscaleConfig

_FAST_S = 30.0
_SLOW_S = 300.0


@dataclass(frozen=True, slots=True)
class LoadSample:
    now: float
    arrived_s: float
    """Work arrived since the last look, in seconds of one engine."""
    waiting_s: float = 0.0  # work arrived and not begun
    replicas: int = 0  # ready or starting
    ttft_s: float | None = None
    """Prediction for a request that arrives now; None: unknown."""
    ttft_target_s: float = 1.0
    running: int = 0


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    now: float
    replicas: int
    reason: str
    needed: float = 0.0
    """Replicas that the work needs, before it is rounded and bounded."""


class Autoscaler:
    """The autoscaler of one model. Its bounds in `config` may be replaced between decisions; `replicas` is the present
    number."""

    def __init__(self, config: AutoscaleConfig, replicas: int) -> None:
        self.config = config
        self._replicas = replicas
        self._fast = self._slow = 0.0
        self._last: float | None = None
        self._used_at: float | None = None  # time of the last look with an arrival or a running request
        self._raised_at = -math.inf
        self._needed: deque[tuple[float, int]] = deque()
        """Replicas needed at each look of the last `scale_in_delay_s`, and at the one before."""

    def decide(self, sample: LoadSample) -> ScalingDecision:
        config, now = self.config, sample.now
        self._count(sample)
        foreseen = self._foreseen()
        backlog = sample.waiting_s / max(sample.ttft_target_s, config.start_s)
        unbounded = foreseen / config.target_utilization + backlog
        needed = math.ceil(unbounded - 1e-9)
        parts = [f"{self._rate():.2f} s of work a second arrive, {foreseen:.2f} are foreseen"]
        if sample.waiting_s:
            parts.append(f"{sample.waiting_s:.1f} s wait")
        late = sample.ttft_s is not None and sample.ttft_s > sample.ttft_target_s
        if late and now - self._raised_at > config.start_s:  # one that was started must have had time to help
            needed = max(needed, sample.replicas + 1)
            parts.append(f"the first token is predicted after {sample.ttft_s:.1f} s")
        idle = self._used_at is None or now - self._used_at > config.idle_s
        if idle and not sample.waiting_s and config.min_replicas == 0:
            needed = 0
            parts.append(f"nothing has arrived or run for {config.idle_s:g} s")
        else:
            needed = max(needed, 1)
        needed = min(max(needed, config.min_replicas), config.max_replicas)
        return ScalingDecision(now, self._settled(now, needed, parts), "; ".join(parts), unbounded)

    def _settled(self, now: float, needed: int, parts: list[str]) -> int:
        config, since = self.config, now - self.config.scale_in_delay_s
        self._replicas = min(max(self._replicas, config.min_replicas), config.max_replicas)
        self._needed.append((now, needed))
        while len(self._needed) > 1 and self._needed[1][0] <= since:
            self._needed.popleft()
        enough = min(max(count for _, count in self._needed), config.max_replicas)
        if needed > self._replicas:
            self._replicas, self._raised_at = needed, now
            parts.append(f"{needed} are needed")
        elif self._needed[0][0] > since and needed < self._replicas:
            parts.append(f"{needed} would do, but that has not been known for {config.scale_in_delay_s:g} s")
        elif enough < self._replicas:
            self._replicas = enough
            parts.append(f"{enough} have been enough for {config.scale_in_delay_s:g} s")
        elif needed < self._replicas:
            parts.append(f"{needed} would do, but {enough} were needed within {config.scale_in_delay_s:g} s")
        else:
            parts.append(f"{needed} are enough")
        return self._replicas

    def _count(self, sample: LoadSample) -> None:
        is_first = self._last is None and self._replicas > 0  # what is there was asked for
        if sample.arrived_s or sample.running or is_first:
            self._used_at = sample.now
        if self._last is None or sample.now <= self._last:
            self._last = sample.now
            return
        elapsed, self._last = sample.now - self._last, sample.now
        rate = sample.arrived_s / elapsed
        self._fast += (1 - math.exp(-elapsed / _FAST_S)) * (rate - self._fast)
        self._slow += (1 - math.exp(-elapsed / _SLOW_S)) * (rate - self._slow)

    def _rate(self) -> float:
        return max(self._fast, self._slow)

    def _foreseen(self) -> float:
        """The rate when a replica that is started now is ready. An average over T lags a steady rise by T."""
        rise = max(0.0, self._fast - self._slow) / (_SLOW_S - _FAST_S)
        return self._rate() + rise * (self.config.start_s + _FAST_S)
