from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvarn.routing.timeouts import StageTimeouts, TimeoutStage

SECONDS = st.none() | st.integers(1, 100)


@given(SECONDS, SECONDS, SECONDS, st.integers(0, 50), st.integers(0, 50), st.booleans())
def test_the_earliest_deadline_counts(
    first: int | None, between: int | None, total: int | None, began: int, waited: int, begun: bool
) -> None:
    timeouts = StageTimeouts(first_token_s=first, between_tokens_s=between, total_s=total)
    now = began + waited
    ends = []
    if begun and between is not None:
        ends.append(now + between)
    if not begun and first is not None:
        ends.append(began + first)
    if total is not None:
        ends.append(began + total)
    deadline = timeouts.deadline(began, now, begun=begun)
    assert (deadline is None) == (not ends)
    if deadline is not None:
        at, stage = deadline
        assert at == min(ends)
        assert stage in (TimeoutStage.TOTAL, TimeoutStage.BETWEEN_TOKENS if begun else TimeoutStage.FIRST_TOKEN)
        assert timeouts.seconds(stage) is not None
