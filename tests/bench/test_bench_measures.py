"""What the load generator says about a server of which everything is known."""

from __future__ import annotations

import json
import signal

import numpy as np
import pytest

from kvarn.bench.driver import Job, Outcome
from kvarn.bench.records import Record
from kvarn.bench.session import BenchError, first_model, run_job
from kvarn.bench.summary import Slo, summarise
from kvarn.bench.target import Endpoint, Target
from kvarn.traffic.workload import Lengths, synthetic_requests, warm_up_requests


def requests(count=4, prompt=12, output=6, **more):
    return synthetic_requests(count=count, prompt=Lengths(prompt, prompt), output=Lengths(output, output), **more)


def run(server, to_send=None, concurrency=2, **target) -> Outcome:
    job = Job(
        target=Target(url=server.url, model="m", **target), requests=to_send or requests(), concurrency=concurrency
    )
    return run_job(job)


def test_ttft_and_tpot_are_those_of_the_server(serve, behaviour):
    outcome = run(serve(behaviour(first_s=0.15, gap_s=0.03)))
    summary = summarise(outcome)
    assert summary.succeeded == 4
    assert all(record.ttft_s > 0.14 for record in outcome.records)
    assert all(record.tpot_s > 0.025 for record in outcome.records)
    assert summary.itl_ms.mean == pytest.approx(summary.tpot_ms.mean)
    assert (summary.prompt_tokens, summary.output_tokens) == (48, 24)
    assert summary.wrong_length == 0


def test_tokens_come_from_usage_and_never_from_the_number_of_chunks(serve, behaviour):
    outcome = run(serve(behaviour(gap_s=0.06, tokens_per_chunk=3)), requests(count=2, output=7))
    record = outcome.records[0]
    assert record.output_tokens == 7
    assert record.chunk_tokens == [3, 3, 1]
    assert record.tpot_s == pytest.approx((record.chunk_times[-1] - record.chunk_times[0]) / 6)
    gaps = record.inter_token_gaps()
    assert len(gaps) == 6
    assert gaps[:2] == [0.0, 0.0]  # came with the first
    assert gaps[2:5] == pytest.approx([record.chunk_gaps()[0] / 3] * 3)
    assert np.mean(gaps) == pytest.approx(record.tpot_s)
    summary = summarise(outcome)
    assert summary.tokens_per_chunk == pytest.approx(7 / 3)
    assert summary.chunk_gap_ms.mean > 50


def test_chat_sends_text_and_does_not_take_the_greeting_for_a_token(serve, behaviour):
    server = serve(behaviour(first_s=0.1))
    outcome = run(server, endpoint=Endpoint.CHAT)
    assert all(record.ttft_s > 0.09 and len(record.chunk_times) == 6 for record in outcome.records)
    assert len(server.bodies[0]["messages"][0]["content"].split()) == 12


def test_requests_ask_for_greedy_streams_of_exact_length_with_usage(serve, behaviour):
    server = serve(behaviour())
    run(server, api_key="secret")
    body = server.bodies[0]
    asked = ("temperature", "stream", "stream_options", "max_tokens", "min_tokens", "ignore_eos")
    assert [body[name] for name in asked] == [0, True, {"include_usage": True}, 6, 6, True]
    assert "Authorization: Bearer secret" in server.headers[0]
    run(server, ignore_eos=False)
    assert not {"ignore_eos", "min_tokens"} & server.bodies[-1].keys()


@pytest.mark.parametrize(
    ("does", "kind"),
    [
        ({"usage": False}, "no_usage"),
        ({"status": 429}, "http_429"),
        ({"status": 503}, "http_503"),
        ({"break_after": 3}, "broken_stream"),
        ({"events": ['{"choices": [{"text": "a"}]}']}, "broken_stream"),
        ({"events": ['{"error": {"message": "engine lost"}}']}, "error_in_stream"),
        ({"events": ['{"choices": [{"text": "a", "finish_reason": "abort"}]}', "[DONE]"]}, "error_in_stream"),
        ({"events": ["{not json"]}, "bad_response"),
        ({"events": ['{"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 0}}', "[DONE]"]}, "no_tokens"),
        ({"first_s": 5.0}, "timeout"),
    ],
)
def test_failures_are_counted_by_kind_and_stay_out_of_the_figures(serve, behaviour, does, kind):
    summary = summarise(run(serve(behaviour(**does)), timeout_s=0.4))
    assert summary.errors == {kind: 4}
    assert (summary.succeeded, summary.output_tokens, summary.ttft_ms) == (0, 0, None)


def test_a_refusal_keeps_what_the_server_said(serve, behaviour):
    outcome = run(serve(behaviour(status=429, fail_every=2)), requests(count=6), concurrency=1)
    assert [record.message for record in outcome.records if record.error] == ["slow down"] * 3
    assert summarise(outcome, Slo(ttft_ms=10_000)).goodput.ratio == 0.5


def test_a_closed_loop_keeps_its_concurrency_and_no_more(serve, behaviour):
    server = serve(behaviour(first_s=0.05))
    outcome = run(server, requests(count=12), concurrency=3)
    assert server.most_running == 3
    assert summarise(outcome).peak_concurrency == 3
    assert server.connections == 3  # kept alive


def test_a_kept_connection_that_the_server_closed_is_replaced_unseen(serve, behaviour):
    server = serve(behaviour(close_idle=True))
    assert summarise(run(server, requests(count=5), concurrency=1)).succeeded == 5


def test_an_open_loop_never_waits_and_counts_from_the_due_time(serve, behaviour):
    server = serve(behaviour(first_s=1.0))
    arrivals = [0.02 * turn for turn in range(10)]
    outcome = run(server, requests(count=10, arrivals=arrivals), concurrency=None)
    assert server.most_running == 10  # all came before the first answer
    assert server.arrived[-1] - server.arrived[0] > 0.1
    assert sorted(record.scheduled_s for record in outcome.records) == arrivals
    assert all(record.lag_s >= 0 and record.ttft_s > 0.99 + record.lag_s for record in outcome.records)


def test_warm_up_is_sent_first_and_not_counted(serve, behaviour):
    server = serve(behaviour())
    to_send = requests(count=3, shared_prefix=5)
    target = Target(url=server.url, model="m")
    outcome = run_job(Job(target=target, requests=to_send, concurrency=1, warm_up=warm_up_requests(to_send, 2)))
    assert len(server.bodies) == 5
    assert len(outcome.records) == 3
    warm, measured = server.bodies[0]["prompt"], server.bodies[2]["prompt"]
    assert warm[:5] == measured[:5]
    assert warm[5] != measured[5]
    assert len(warm) == len(measured) == 17


def test_a_server_that_is_away_is_an_error_that_says_so():
    target = Target(url="http://127.0.0.1:9", model="m")
    with pytest.raises(BenchError, match="cannot connect"):
        run_job(Job(target=target, requests=requests(), concurrency=1, warm_up=warm_up_requests(requests(), 1)))
    outcome = run_job(Job(target=target, requests=requests(), concurrency=1))
    assert summarise(outcome).errors == {"connect": 4}


def test_the_first_listed_model_is_the_default_and_v1_in_the_url_is_no_matter(serve, behaviour):
    server = serve(behaviour())
    assert first_model(Target(url=server.url, model="")) == "scripted"
    assert first_model(Target(url=server.url + "/v1/", model="")) == "scripted"


def test_cached_tokens_are_a_ratio_where_told_and_absent_where_not(serve, behaviour):
    assert summarise(run(serve(behaviour(cached_tokens=9)))).cached_ratio == pytest.approx(9 / 12)
    assert summarise(run(serve(behaviour(cached_tokens=None)))).cached_ratio is None


def record(index, ttft, tpot, tokens=5, error=None):
    times = [ttft + index + turn * tpot for turn in range(tokens)]
    ends = times[-1]
    return Record(
        index=index,
        scheduled_s=float(index),
        sent_s=float(index),
        end_s=ends,
        prompt_tokens=10,
        output_tokens=tokens,
        asked_output_tokens=tokens,
        chunk_times=times,
        chunk_tokens=[1] * tokens,
        error=error,
    )


def outcome_of(records):
    ends = max(each.end_s for each in records)
    return Outcome(
        records=records, duration_s=ends, unfinished=0, interrupted=False, generator_cpu_s=0.0, started_at=0.0
    )


def test_percentiles_are_those_of_numpy():
    generator = np.random.default_rng(5)
    ttfts, tpots = generator.exponential(0.3, 257), generator.exponential(0.05, 257)
    records = [record(index, a, b) for index, (a, b) in enumerate(zip(ttfts, tpots, strict=True))]
    summary = summarise(outcome_of(records))
    for name, values in (("ttft_ms", ttfts), ("tpot_ms", tpots), ("itl_ms", np.repeat(tpots, 4))):
        found = getattr(summary, name)
        expected = np.percentile(values * 1000, [50, 90, 95, 99])
        assert [found.p50, found.p90, found.p95, found.p99] == pytest.approx(expected.tolist())
    assert summary.e2e_ms.max == pytest.approx(float((ttfts + 4 * tpots).max() * 1000))


def test_goodput_counts_requests_that_met_both_targets_over_all():
    records = [record(0, 0.1, 0.01), record(1, 0.9, 0.01), record(2, 0.1, 0.5), record(3, 0.1, 0.0, tokens=1)]
    records.append(record(4, 0.1, 0.01, error="http_500"))
    outcome = outcome_of(records)
    goodput = summarise(outcome, Slo(ttft_ms=500, tpot_ms=100)).goodput
    assert (goodput.good, goodput.ratio) == (2, pytest.approx(0.4))
    assert goodput.requests_per_s == pytest.approx(2 / outcome.duration_s)
    assert summarise(outcome, Slo(ttft_ms=500)).goodput.good == 3
    assert summarise(outcome, Slo()).goodput is None


def test_a_summary_is_plain_json(serve, behaviour):
    from kvarn.bench.export import document

    outcome = run(serve(behaviour()))
    read = json.loads(json.dumps(document(outcome, summarise(outcome), {"seed": 0})))
    assert [row["index"] for row in read["requests"]] == [0, 1, 2, 3]
    assert read["summary"]["output_tokens"] == sum(row["output_tokens"] for row in read["requests"])


def test_a_run_gives_the_stop_signals_back_to_whom_they_were(serve, behaviour):
    def mine(*_):
        raise AssertionError

    before = signal.signal(signal.SIGTERM, mine)
    try:
        run(serve(behaviour()))
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)
