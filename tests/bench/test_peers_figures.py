"""The suite against peers: records that survive an interruption, medians, ratios, tables, the written section."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def benchmarks_can_be_imported(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))


@pytest.fixture
def rounds(measurement):
    """Three rounds in which Kvarn is twice as fast as vLLM on W1 and half as fast on W3; llama.cpp is cut off on W3."""
    records = []
    for number, noise in enumerate((0.5, 1.0, 1.1)):
        records += [
            measurement("kvarn", "W1", round=number, output_tokens_per_s=20.0 * noise),
            measurement("vllm", "W1", round=number, output_tokens_per_s=10.0 * noise),
            measurement("llama.cpp", "W1", round=number, output_tokens_per_s=8.0),
            measurement("kvarn", "W3", round=number, output_tokens_per_s=50.0, ttft_ms=1500.0),
            measurement("vllm", "W3", round=number, output_tokens_per_s=100.0),
            measurement("kvarn", "W6", round=number, goodput=1.5),
            measurement("vllm", "W6", round=number, goodput=0.5),
        ]
    return [*records, measurement("llama.cpp", "W3", output_tokens_per_s=900.0, cut_after_s=300.0)]


def test_figures_are_medians_over_the_rounds(rounds):
    from benchmarks.peers.figures import cells

    found = cells(rounds, "0.6b", "bf16")
    ours = found["kvarn", "W1"]
    assert (ours.value, ours.low, ours.high, ours.rounds) == (20.0, 10.0, 22.0, 3)
    assert found["kvarn", "W6"].value == 1.5
    assert cells(rounds, "0.6b", "int8") == {}


def test_the_ratio_is_to_the_fastest_peer_that_finished(rounds, measurement):
    from benchmarks.peers.figures import best_peer, cells, ratio

    found = cells(rounds, "0.6b", "bf16")
    assert best_peer(found, "W3").engine == "vllm"
    assert [ratio(found, name) for name in ("W1", "W3", "W6")] == [2.0, 0.5, 3.0]
    assert ratio(found, "W2") is None
    unfinished = [measurement("kvarn", "W5", failed=1), measurement("vllm", "W5")]
    assert ratio(cells(unfinished, "0.6b", "bf16"), "W5") is None


def test_answers_of_a_wrong_length_are_no_measure(measurement):
    assert measurement("vllm", "W1").whole
    assert not measurement("vllm", "W1", wrong_length=1).whole


def test_a_later_measurement_of_the_same_replaces_the_earlier(measurement):
    from benchmarks.peers.figures import cells

    records = [measurement("kvarn", "W1", output_tokens_per_s=1.0), measurement("kvarn", "W1")]
    assert cells(records, "0.6b", "bf16")["kvarn", "W1"].value == 10.0


def test_records_outlive_an_interruption_in_the_middle_of_a_line(tmp_path, rounds):
    from benchmarks.peers.records import Ledger, RecordsError, Stop

    path = tmp_path / "new" / "results.jsonl"
    ledger = Ledger.open(path, resume=False)
    for record in rounds:
        ledger.add(record)
    with path.open("ab") as file:
        file.write(b'{"type":"measure')
    with pytest.raises(RecordsError, match="--resume"):
        Ledger.open(path, resume=False)
    resumed = Ledger.open(path, resume=True)
    assert resumed.records == rounds
    stop = Stop(shape="0.6b", precision="bf16", engine="vllm", round=0, peak_pss_bytes=5)
    resumed.add(stop)
    assert Ledger.open(path, resume=True).records == [*rounds, stop]


def test_a_file_of_something_else_is_refused(tmp_path):
    from benchmarks.peers.records import Ledger, RecordsError

    path = tmp_path / "other.jsonl"
    path.write_text('{"some": "thing"}\n')
    with pytest.raises(RecordsError, match="holds no results"):
        Ledger.open(path, resume=True)


def test_the_tables_say_the_ratio_and_which_peer_is_faster(rounds, measurement):
    from benchmarks.peers.tables import all_grids, peers_that_lead

    speed = all_grids(rounds, lambda *_: 40.0)[0]
    by_engine = {row[0]: row[1:] for row in speed.rows}
    assert speed.headings[1:] == ["W1", "W3", "W6 good req/s"]
    assert by_engine["Kvarn / best peer"] == ["2.00x", "0.50x", "3.00x"]
    assert by_engine["Kvarn / what the machine allows"][0] == "50%"
    assert by_engine["llama.cpp"][1] == "900.0*"
    assert by_engine["Kvarn"][0] == "20.0 (10.0 to 22.0)"
    assert peers_that_lead(rounds) == ["vLLM is 2.00 times as fast as Kvarn on W3 (0.6b shape, bf16)"]
    unanswered = [*rounds, measurement("openvino", "W2"), measurement("kvarn", "W2", failed=1)]
    assert "OpenVINO GenAI answers W2 (0.6b shape, bf16); Kvarn does not, or not in time" in peers_that_lead(unanswered)
    assert peers_that_lead([measurement("vllm", "W1")]) == []
    without = all_grids(rounds, lambda *_: None)[0]
    assert "Kvarn / what the machine allows" not in [row[0] for row in without.rows]


def test_what_failed_is_told_with_its_reason_until_it_succeeds(rounds, measurement):
    from benchmarks.peers.figures import classes, engines, failures
    from benchmarks.peers.records import Failure

    who = {"shape": "0.6b", "precision": "int8", "engine": "kvarn", "round": 0}
    failed = [Failure(**who, reason="first"), Failure(**who, reason="second")]
    assert [each.reason for each in failures([*rounds, *failed])] == ["second"]
    assert classes([*rounds, *failed]) == [("0.6b", "bf16"), ("0.6b", "int8")]
    assert engines([*rounds, *failed], "0.6b", "int8") == ["kvarn"]
    assert failures([*failed, measurement("kvarn", "W1", precision="int8")]) == []


def test_the_section_replaces_itself_and_nothing_else(rounds, tmp_path):
    from benchmarks.peers.records import Failure, Machine
    from benchmarks.peers.section import write_section

    where = {"processor": "Two Cores", "cores": 2, "system": "Linux", "python": "3.11"}
    machine = Machine(started_at="2026-11-21T07:00:00+00:00", environment=where, settings={"rounds": 3})
    broken = Failure(shape="0.6b", precision="int8", engine="kvarn", round=0, reason="no such field")
    document = tmp_path / "benchmarks.md"
    document.write_text("# Figures\n\nBefore.\n")
    write_section([machine, *rounds], document)
    document.write_text(document.read_text() + "\nAfter.\n")
    written = write_section([machine, *rounds, broken], document)
    text = document.read_text()
    assert text.startswith("# Figures\n\nBefore.\n\n<!-- peers")
    assert text.endswith("<!-- peers: end -->\n\nAfter.\n")
    assert text.count("## Against peers") == 1
    for said in ("2026-11-21, Two Cores", "(peers-0.6b.svg)", "| 2.00x |", "no such field", "as fast as Kvarn on W3"):
        assert said in text
    assert [path.name for path in written] == ["benchmarks.md", "peers-0.6b.svg"]


def test_nothing_is_written_from_a_smoke_run(tmp_path, measurement):
    from benchmarks.peers.records import RecordsError
    from benchmarks.peers.section import write_section

    with pytest.raises(RecordsError, match="no measurements of full workloads"):
        write_section([measurement("kvarn", "W1", smoke=True)], tmp_path / "benchmarks.md")
    assert not list(tmp_path.iterdir())


def test_the_plot_draws_each_engine_as_a_share_of_the_fastest(rounds):
    from benchmarks.peers.plot import plot

    tree = ElementTree.fromstring(plot(rounds, "0.6b"))
    bars = [each for each in tree.iter() if each.get("class", "").startswith("bar")]
    heights = {each[0].text: float(each.get("height")) for each in bars}
    assert len(bars) == 8
    assert heights["Kvarn, W1: 20"] == pytest.approx(2 * heights["vLLM, W1: 10"], rel=0.01)
    cut = [each for each in bars if "cut" in each.get("class")]
    assert [each[0].text for each in cut] == ["llama.cpp, W3: 900"]


def test_the_ceiling_is_what_bytes_and_operations_allow():
    from benchmarks.peers.floors import ceiling, known_ceilings
    from benchmarks.peers.records import Limits

    limits = Limits(bytes_per_s=29.1e9, operations_per_s={"bf16": 6.36e12})
    most = ceiling(known_ceilings([limits]))
    decode_alone = 29.1e9 / 946.5e6
    assert most("0.6b", "bf16", "W1") == pytest.approx(decode_alone, rel=0.05)
    assert most("0.6b", "bf16", "W1") < decode_alone
    prompts_alone = 4 * 8 / (4 * 1024 * 2 * 440e6 / 6.36e12)
    assert most("0.6b", "bf16", "W5") < prompts_alone
    slow = ceiling(known_ceilings([Limits(bytes_per_s=29.1e9, operations_per_s={"bf16": 0.19e12})]))
    assert slow("0.6b", "bf16", "W5") == pytest.approx(prompts_alone * 0.19 / 6.36, rel=0.15)
    assert most("0.6b", "int8", "W1") is None
    assert most("0.6b", "bf16", "W6") is None
    assert known_ceilings([]) == {}


def test_a_ceiling_is_the_highest_that_was_measured():
    from benchmarks.peers.floors import known_ceilings
    from benchmarks.peers.records import Limits

    first = Limits(bytes_per_s=31e9, operations_per_s={"bf16": 1e11, "int8": 3e11})  # while something else computed
    second = Limits(bytes_per_s=29e9, operations_per_s={"bf16": 2e11})
    ceilings = known_ceilings([first, second])
    assert ceilings["bf16"].bytes_per_s == ceilings["int8"].bytes_per_s == 31e9
    assert (ceilings["bf16"].operations_per_s, ceilings["int8"].operations_per_s) == (2e11, 3e11)
