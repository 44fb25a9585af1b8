"""The suite against peers: who is measured when, what is left after an interruption, W6's rate."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENGINES = ["kvarn", "vllm", "llama.cpp"]
ALL = ["W1", "W2", "W3", "W4", "W5", "W6"]


@pytest.fixture(autouse=True)
def benchmarks_can_be_imported(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))


def plan(workloads, rounds, engines=ENGINES):
    from benchmarks.peers.plan import in_order, rounds_of

    return in_order([rounds_of("0.6b", "bf16", engines, workloads, rounds)])


def test_engines_take_turns_and_each_round_begins_with_another():
    made = plan(["W1", "W2"], 3)
    order = [[each.engine for each in made if each.round == number] for number in range(3)]
    assert order == [
        ["kvarn", "vllm", "llama.cpp"],
        ["vllm", "llama.cpp", "kvarn"],
        ["llama.cpp", "kvarn", "vllm"],
    ]
    assert {each.workloads for each in made} == {("W1", "W2")}


def test_w6_joins_when_the_first_round_has_told_its_rate_and_every_round_gets_one():
    made = plan(ALL, 3)
    assert all("W6" not in each.workloads for each in made[:3])
    assert all(each.workloads == tuple(ALL) for each in made[3:9])
    assert [(each.engine, each.round, each.workloads) for each in made[9:]] == [
        (engine, 0, ("W6",)) for engine in ENGINES
    ]
    measured = [(each.engine, each.round, name) for each in made for name in each.workloads]
    assert len(measured) == len(set(measured)) == 3 * 3 * 6


def test_every_class_has_its_first_round_before_any_has_its_second():
    from benchmarks.peers.plan import in_order, rounds_of

    classes = [("bf16", ENGINES), ("int4", ["kvarn", "llama.cpp"])]
    made = in_order([rounds_of("0.6b", precision, engines, ALL, 2) for precision, engines in classes])
    assert [(each.precision, each.round) for each in made[:5]] == [("bf16", 0)] * 3 + [("int4", 0)] * 2
    assert [each.round for each in made] == [0] * 5 + [1] * 5 + [0] * 5
    assert {each.workloads for each in made[10:]} == {("W6",)}


def test_w6_alone_needs_no_round_before_it():
    assert [each.workloads for each in plan(["W6"], 2)] == [("W6",)] * 6


def test_no_engines_make_no_sessions():
    assert plan(ALL, 3, engines=[]) == []


def test_what_was_measured_is_not_measured_again(measurement):
    from benchmarks.peers.plan import left_of

    session = plan(["W1", "W2", "W3"], 1)[0]
    records = [measurement("kvarn", "W1"), measurement("kvarn", "W2", round=1), measurement("vllm", "W3")]
    assert left_of(session, records).workloads == ("W2", "W3")
    assert left_of(session, []).workloads == ("W1", "W2", "W3")


def test_a_workload_that_was_cut_off_is_left_out_of_later_rounds_of_this_engine_only(measurement):
    from benchmarks.peers.plan import left_of

    records = [measurement("vllm", "W3", cut_after_s=300.0)]
    again = {each.engine: left_of(each, records).workloads for each in plan(["W1", "W3"], 2) if each.round == 1}
    assert again == {"kvarn": ("W1", "W3"), "vllm": ("W1",), "llama.cpp": ("W1", "W3")}


def test_an_engine_that_did_not_start_is_not_started_again_in_its_class():
    from benchmarks.peers.plan import gave_up
    from benchmarks.peers.records import Failure

    def failure(workload):
        return Failure(shape="0.6b", precision="bf16", engine="vllm", round=0, workload=workload, reason="no AVX2")

    first, second, _ = plan(["W1"], 1)
    assert gave_up(second, [failure(None)]).reason == "no AVX2"
    assert gave_up(first, [failure(None)]) is None
    assert gave_up(second, [failure("W1")]) is None


def test_the_rate_of_w6_is_a_share_of_the_best_peers_on_w3(measurement):
    from benchmarks.peers.plan import chosen_rate

    records = [
        measurement("kvarn", "W3", requests_per_s=9.0),
        measurement("vllm", "W3", requests_per_s=2.0),
        measurement("llama.cpp", "W3", requests_per_s=1.0),
        measurement("llama.cpp", "W3", requests_per_s=7.0, cut_after_s=300.0, round=1),
        measurement("openvino", "W3", requests_per_s=8.0, failed=1),
        measurement("vllm", "W3", requests_per_s=5.0, precision="int8"),
    ]
    peers = ["vllm", "llama.cpp", "openvino"]
    found = chosen_rate(records, "0.6b", "bf16", peers)
    assert found.requests_per_s == pytest.approx(1.6)
    assert "vllm" in found.because
    assert chosen_rate(records, "1b", "bf16", peers) is None


def test_w6_sends_the_requests_of_w3_at_random_times_of_its_rate():
    from benchmarks.peers.load import LoadError, job, target_at
    from benchmarks.workloads import WORKLOADS

    target = target_at("http://127.0.0.1:1", "m", 7, 300.0)
    made = job("W6", target, 4.0)
    assert made.concurrency is None
    assert [(each.prompt_tokens, each.output_tokens) for each in made.requests] == [(128, 128)] * 64
    arrivals = [each.arrival_s for each in made.requests]
    assert arrivals == sorted(arrivals)
    assert 64 / arrivals[-1] == pytest.approx(4.0, rel=0.4)
    assert job("W6", target, 4.0) == made
    with pytest.raises(LoadError, match="no rate"):
        job("W6", target, None)
    closed = job("W4", target, None)
    assert closed.concurrency == WORKLOADS["W4"].concurrency
    assert [each.prompt_tokens for each in closed.warm_up] == [1056]


def test_prompts_differ_between_rounds_and_workloads():
    from benchmarks.peers.load import NAMES, seed_of

    seeds = [seed_of(number, name) for number in range(5) for name in NAMES]
    assert len(set(seeds)) == len(seeds)


def test_a_smoke_run_sends_one_batch_of_short_requests_of_each_workload():
    from benchmarks.peers.load import NAMES, job, target_at

    target = target_at("http://127.0.0.1:1", "m", 7, 300.0)
    made = {name: job(name, target, 1.0, is_smoke=True) for name in NAMES}
    assert {name: len(each.requests) for name, each in made.items()} == {
        "W1": 1,
        "W2": 8,
        "W3": 32,
        "W4": 8,
        "W5": 4,
        "W6": 32,
    }
    assert {each.requests[0].output_tokens for each in made.values()} == {4}
    assert made["W5"].requests[0].prompt_tokens == 1024


def test_a_list_on_the_command_line_names_what_it_does_not_know(capsys):
    from benchmarks.peers.__main__ import parse

    asked = parse(
        ["run", "--engines", "Kvarn,llama.CPP", "--workloads", "w1,W6", "--classes", "int8", "--shapes", "1b"]
    )
    assert (asked.engines, asked.workloads, asked.shapes) == (["kvarn", "llama.cpp"], ["W1", "W6"], ["1b"])
    assert [str(each) for each in asked.classes] == ["int8"]
    with pytest.raises(SystemExit):
        parse(["run", "--workloads", "W9"])
    assert "'w9' is not one of W1, W2" in capsys.readouterr().err
