"""Single requests of the ledger, for simulations."""

from __future__ import annotations

from kvarn.store.engine import Store
from kvarn.store.repositories.usage import events as usage_events
from kvarn.store.repositories.usage.recent import arrival_s, requests_of_model
from sample_usage import make_event

START = 1_790_000_000


async def test_requests_of_a_model_come_in_the_order_of_their_arrival_the_newest_at_most(store: Store) -> None:
    def event(number: int, **fields: object) -> object:
        return make_event(number, started_at=START + number, finished_at=START + 100 - number, **fields)

    given = [event(number) for number in range(1, 6)]
    others = [
        event(6, model="other"),
        event(7, cache="exact"),
        event(8, batch_id="batch_1"),
        event(9, output_tokens=0),
        make_event(10, started_at=START - 5, finished_at=START - 1),
        make_event(11, started_at=START, finished_at=START + 200),
    ]
    await usage_events.record(store, [*given, *others])  # type: ignore[list-item]
    found = await requests_of_model(store, "tiny", start=START, end=START + 200, limit=10)
    assert [each.at_s - START for each in found] == [1, 2, 3, 4, 5]
    assert found[0].ttft_s == 0.1 and found[0].duration_s == 0.9 and found[0].finished
    newest = await requests_of_model(store, "tiny", start=START, end=START + 200, limit=2)
    assert [each.at_s - START for each in newest] == [1, 2], "those that ended last"


def test_an_id_tells_the_millisecond_of_an_arrival() -> None:
    assert arrival_s(f"use_{START * 1000 + 123:012x}ffffffff", START) == START + 0.123
    assert arrival_s(f"use_{START * 1000 + 5000:012x}ffffffff", START) == START, "an id of another time"
    assert arrival_s("use_1", START) == arrival_s("use_nothing", START) == START
