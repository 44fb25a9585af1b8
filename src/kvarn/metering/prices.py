"""Prices of tokens: integers all the way, so that sums of costs are exact."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, date, datetime
from decimal import Decimal

from kvarn.config.platform import PriceConfig

BILLIONTHS = 10**9
"""Units of cost in one unit of the currency."""
_EVERY_MODEL = "*"
_MILLION = 10**6


class PriceBook:
    """Prices by model and day. A model's own prices override those of `*`; the latest that has begun holds; without a
    price the cost is 0."""

    def __init__(self, prices: Iterable[PriceConfig] = ()) -> None:
        self._days: dict[str, list[int]] = defaultdict(list)
        self._prices: dict[str, list[_Price]] = defaultdict(list)
        for price in sorted(prices, key=lambda price: price.since):
            self._days[price.model].append(date.fromisoformat(price.since).toordinal())
            self._prices[price.model].append(_Price(price))

    def cost(self, model: str, at: float, *, prompt: int, cached: int, output: int) -> int:
        """The cost of a request in billionths of the currency's unit, rounded half up.

        Args:
            model: Its name.
            at: Its end, seconds since 1970; the UTC day counts.
            prompt: All its prompt tokens.
            cached: Prompt tokens found in the prefix cache.
            output: Its output tokens.
        """
        price = self._price(model, at) or self._price(_EVERY_MODEL, at)
        return 0 if price is None else price.cost(prompt, min(cached, prompt), output)

    def cached_answer(self, model: str, at: float) -> int:
        """The cost of an answer out of the response cache, in the same unit."""
        price = self._price(model, at) or self._price(_EVERY_MODEL, at)
        return 0 if price is None else price.cached_answer

    def max_cost(self, model: str, at: float, *, prompt: int, output: int) -> int:
        return max(self.cost(model, at, prompt=prompt, cached=cached, output=output) for cached in (0, prompt))

    def _price(self, model: str, at: float) -> _Price | None:
        days = self._days.get(model)
        if days is None:
            return None
        found = bisect_right(days, datetime.fromtimestamp(at, UTC).toordinal())
        return self._prices[model][found - 1] if found else None


class _Price:
    """A configured price in billionths: for a million tokens, and for each request."""

    def __init__(self, price: PriceConfig) -> None:
        cached = price.input_per_million if price.cached_per_million is None else price.cached_per_million
        self._input, self._cached, self._output = (
            billionths(per_million) for per_million in (price.input_per_million, cached, price.output_per_million)
        )
        self._each = billionths(price.per_request)
        self.cached_answer = billionths(price.per_cached_answer)

    def cost(self, prompt: int, cached: int, output: int) -> int:
        total = (prompt - cached) * self._input + cached * self._cached + output * self._output
        return (total + _MILLION // 2) // _MILLION + self._each


def billionths(amount: float) -> int:
    """Money in billionths; 0.1 is exactly a tenth, as it was written."""
    return int((Decimal(repr(amount)) * BILLIONTHS).to_integral_value())
