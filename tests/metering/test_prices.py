"""Costs are exact integers at the price of their day."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kvarn.config.platform import MeteringConfig, PriceConfig
from kvarn.metering.event import InFlight, Measured, make_event
from kvarn.metering.prices import PriceBook, billionths
from sample_usage import make_request


def at(day: str) -> float:
    return datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()


def test_the_price_of_the_day_holds() -> None:
    prices = PriceBook(
        [
            PriceConfig(model="chat", since="2026-02-01", input_per_million=2.0, output_per_million=10.0),
            PriceConfig(model="chat", since="2026-01-01", input_per_million=1.0, output_per_million=5.0),
            PriceConfig(model="*", since="2026-01-01", input_per_million=0.1),
        ]
    )

    def cost(model: str, day: str) -> int:
        return prices.cost(model, at(day), prompt=1_000_000, cached=0, output=100_000)

    assert cost("chat", "2025-12-31T23:59:59") == 0
    assert cost("chat", "2026-01-31T23:59:59") == 1_500_000_000
    assert cost("chat", "2026-02-01T00:00:00") == 3_000_000_000
    assert cost("other", "2026-02-01") == 100_000_000
    assert cost("other", "2025-12-31") == 0


def test_cached_tokens_have_their_own_price_or_that_of_computed_ones() -> None:
    own = PriceBook([PriceConfig(model="*", input_per_million=1.0, cached_per_million=0.25)])
    same = PriceBook([PriceConfig(model="*", input_per_million=1.0)])
    assert own.cost("m", 0, prompt=1_000, cached=400, output=0) == 600_000 + 100_000
    assert same.cost("m", 0, prompt=1_000, cached=400, output=0) == 1_000_000
    assert own.cost("m", 0, prompt=10, cached=99, output=0) == 2_500


@given(st.integers(0, 10**7), st.integers(0, 10**7), st.decimals("0.0001", "1000", places=4))
def test_no_token_is_rounded_away(prompt: int, output: int, price: Any) -> None:
    prices = PriceBook([PriceConfig(model="*", input_per_million=float(price), output_per_million=float(price))])
    exact = (prompt + output) * price * 1000
    assert abs(prices.cost("m", 0, prompt=prompt, cached=0, output=output) - exact) <= exact.__class__("0.5")


def test_money_is_what_was_written() -> None:
    assert billionths(0.1) * 3 == billionths(0.3) == 300_000_000


def test_two_prices_of_one_day_are_refused() -> None:
    with pytest.raises(ValidationError, match="keep one"):
        MeteringConfig(prices=({"model": "m"}, {"model": "m"}))  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="YYYY-MM-DD"):
        PriceConfig(model="m", since="2026-02-30")


@pytest.mark.parametrize(
    ("outcome", "output", "writes", "costs"),
    [
        ("finished", 5, True, True),
        ("aborted", 0, True, True),
        ("failed", 0, True, False),
        ("lost", 0, True, False),
        ("failed", 1, True, True),
        ("lost", 0, False, True),
    ],
)
def test_what_the_platform_lost_before_its_first_token_costs_nothing(
    outcome: str, output: int, writes: bool, costs: bool
) -> None:
    prices = PriceBook([PriceConfig(model="*", input_per_million=1.0, output_per_million=1.0)])
    request: InFlight = make_request(1, writes=writes)
    entry = make_event(request, Measured(outcome, 10, 4, output, request.started + 1.5, 0.25), prices, "sek")
    assert (entry.cost > 0) is costs
    assert (entry.input_tokens, entry.cached_tokens, entry.output_tokens) == (10, 4, output)
    assert (entry.duration_ms, entry.ttft_ms, entry.currency) == (1500, 250, "sek")
