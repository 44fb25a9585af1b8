"""The suite against peers with engines made for the test: whole runs, failures, resumption, the report."""

from __future__ import annotations

import json
import os
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from benchmarks.models import SHAPES
from benchmarks.peers.__main__ import parse
from benchmarks.peers.engines import Case, Engine, Launch, Precision, engines, missing_kernels
from benchmarks.peers.quantise import write_w8a8
from benchmarks.peers.records import (
    Failure,
    Installation,
    Ledger,
    Machine,
    Measurement,
    Rate,
    RecordsError,
    Session,
    measurements,
)
from benchmarks.peers.report import failures, figures, ratio, report
from benchmarks.peers.session import NAMES, Runner, Suite, chosen_rate, left_of, plan, seed_of
from benchmarks.peers.sizes import Installed, closure, installed_size
from benchmarks.peers.workshop import PrepareError, Workshop
from benchmarks.server import ServerError, free_port, running
from rich.console import Console

from kvarn.bench.driver import Job, Outcome
from kvarn.bench.records import Record
from kvarn.bench.session import run_job
from kvarn.bench.summary import Slo, summarise
from kvarn.bench.target import Target
from kvarn.traffic.workload import Lengths, synthetic_requests

AVX2, AMX = frozenset({"avx2", "fma"}), frozenset({"avx2", "avx512f", "avx512_bf16", "amx_bf16"})
ENGINE = """
import subprocess, sys
from benchmarks.peers.wrappers.front import serve
print("started", subprocess.Popen(["sleep", "600"]).pid, flush=True)
def engine(inbox):
    while True:
        job = inbox.get()
        for place in range(job.max_tokens):
            job.emit([300 + place], place + 1 == job.max_tokens)
serve(engine, int(sys.argv[1]))
"""


class Fake(Engine):
    """An engine behind the real wrapper; `broken` makes it refuse or end."""

    title, notes = "fake", dict.fromkeys(Precision, "as it is")

    def __init__(self, broken: str = "") -> None:
        self._broken = broken

    def obstacle(self, shop, case):
        return self._broken if self._broken == "not installed" else None

    def launch(self, shop, case, port):
        program = "raise ValueError('no such format')" if self._broken == "dies" else ENGINE
        return Launch([sys.executable, "-c", program, str(port)])

    def installed(self, shop):
        return Installed("fake 1", 2000, 1000)


@pytest.fixture
def shop(tmp_path):
    return Workshop(tmp_path / "cache", tmp_path / "models")


@pytest.fixture
def run(shop, tmp_path):
    """Run a smoke suite of fakes; its records, and the lines it printed."""

    def go(engines: dict[str, Engine], resume: bool = False, **fields: Any) -> tuple[list[Any], str]:
        plain = {"workloads": ["W1"], "precisions": [Precision.BF16], "shapes": ["0.6b"], "smoke": True}
        ledger, printed = Ledger(tmp_path / "results.jsonl", resume=resume), StringIO()
        Runner(Suite(**(plain | fields)), engines, shop, ledger, Console(file=printed, width=200)).run()
        return ledger.records, printed.getvalue()

    return go


def kinds(records, kind):
    return [each for each in records if isinstance(each, kind)]


def value(command, flag):
    return command[command.index(flag) + 1]


def test_a_run_measures_all_and_w6_at_the_best_peers_rate(run):
    records, _ = run({"kvarn": Fake(), "peer": Fake()}, workloads=["W1", "W3", "W6"], rounds=2)
    measured = [(each.engine, each.round, each.workload) for each in kinds(records, Measurement)]
    first = [(name, 0, workload) for name in ("kvarn", "peer") for workload in ("W1", "W3")]
    assert measured == first + [(name, 1, workload) for name in ("peer", "kvarn") for workload in ("W1", "W3", "W6")]
    assert all(each.whole for each in kinds(records, Measurement))
    (rate,) = kinds(records, Rate)
    w3 = next(each for each in measurements(records) if (each.engine, each.workload) == ("peer", "W3"))
    assert rate.requests_per_s == pytest.approx(0.8 * w3.summary.requests_per_s)
    assert [each.peak_pss_bytes > 0 for each in kinds(records, Session)] == [True] * 4
    assert {each.version for each in kinds(records, Installation)} == {"fake 1"}


def test_engines_that_cannot_run_are_reported_and_the_others_measured(run):
    engines = {"kvarn": Fake("dies"), "absent": Fake("not installed"), "peer": Fake()}
    records, printed = run(engines, rounds=2)
    assert [(each.engine, each.round) for each in kinds(records, Measurement)] == [("peer", 0), ("peer", 1)]
    failed = {each.engine: each.reason for each in kinds(records, Failure)}
    assert "ValueError: no such format" in failed["kvarn"] and failed["absent"] == "not installed"
    assert len(kinds(records, Failure)) == 2 and "no such format" in printed
    resumed, printed = run(engines | {"kvarn": Fake()}, rounds=2, resume=True)
    assert sorted((each.engine, each.round) for each in kinds(resumed, Measurement)) == [
        (name, turn) for name in ("kvarn", "peer") for turn in (0, 1)
    ]
    assert "peer:" not in printed, "what was measured is not measured again"


def test_a_server_is_timed_to_its_first_answer_and_leaves_nothing_behind(tmp_path, wait_for):
    port, log = free_port(), tmp_path / "log"
    with running([sys.executable, "-c", ENGINE, str(port)], port, log) as server:
        assert server.first_answer_s > 0
        child = int(log.read_text().split("started ")[-1].split()[0])
        assert Path(f"/proc/{child}").exists()
        requests = synthetic_requests(count=6, prompt=Lengths(20, 20), output=Lengths(7, 7))
        outcome = run_job(Job(target=Target(url=server.url, model="m"), requests=requests, concurrency=3))
    assert {(each.error, each.prompt_tokens, each.output_tokens) for each in outcome.records} == {(None, 20, 7)}
    state = Path(f"/proc/{child}/stat")
    wait_for(lambda: not state.exists() or state.read_text().rpartition(")")[2].split()[0] in "ZX", "the child to end")


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("print('KeyError: quantization'); raise SystemExit(1)", r"exit code 1\): KeyError: quantization"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "SIGILL: it uses instructions"),
        ("import signal; signal.pause()", "no answer within 1 s"),
    ],
)
def test_a_server_that_does_not_start_says_why(tmp_path, program, reason):
    command = [sys.executable, "-c", program]
    with pytest.raises(ServerError, match=reason), running(command, free_port(), tmp_path / "log", limit_s=1):
        pass


def test_every_engine_offers_its_classes_and_says_what_is_not_prepared(shop):
    offered = {name: [str(each) for each in one.notes] for name, one in engines(AVX2).items()}
    three, two = ["bf16", "int8", "int4"], ["bf16", "int8"]
    assert offered == {"kvarn": three, "vllm": two, "vllm-f32": two, "llama.cpp": three, "openvino": three}
    assert "vllm-f32" not in engines(AMX)
    for one in engines(AVX2).values():
        assert "benchmarks.peers prepare" in one.obstacle(shop, Case(SHAPES["0.6b"], Precision.BF16))


def test_engines_get_the_same_port_threads_and_model_in_their_own_words(shop):
    own, threads = engines(AVX2), str(len(os.sched_getaffinity(0)))

    def command(name: str, precision: Precision) -> list[str]:
        return own[name].launch(shop, Case(SHAPES["0.6b"], precision), 4321).command

    written = json.loads(Path(value(command("kvarn", Precision.INT8), "--config")).read_text())
    path = str(shop.models / "qwen3-0.6b-shape")
    assert written["models"] == [{"name": "m", "path": path, "kv_cache_gib": 3, "quantization": "int8"}]
    assert written["gateway"] == {"port": 4321}
    vllm = command("vllm-f32", Precision.INT8)
    assert vllm[1:3] == ["serve", str(shop.cache / "vllm" / "models" / "qwen3-0.6b-shape-int8")]
    assert (value(vllm, "--port"), value(vllm, "--dtype")) == ("4321", "float32")
    llama = command("llama.cpp", Precision.INT4)
    assert value(llama, "--model").endswith("qwen3-0.6b-shape-Q4_0.gguf") and value(llama, "--threads") == threads
    assert int(value(llama, "--ctx-size")) // int(value(llama, "--parallel")) >= 1024 + 32 + 32
    openvino = command("openvino", Precision.BF16)
    assert (value(openvino, "--port"), value(openvino, "--threads")) == ("4321", threads)
    assert (value(openvino, "--compute"), value(openvino, "--kv")) == ("f32", "f16")


def test_a_wheel_without_kernels_for_the_processor_is_an_obstacle(tmp_path):
    assert "no kernels without AVX-512" in missing_kernels(tmp_path, AVX2)
    assert "needs AVX2" in missing_kernels(tmp_path, frozenset({"sse4_2"}))
    (tmp_path / "_C_AVX2.abi3.so").touch()
    assert missing_kernels(tmp_path, AVX2) is missing_kernels(tmp_path, AMX) is None


def test_a_failing_command_of_the_preparation_says_what_and_where(shop):
    with pytest.raises(PrepareError, match=r"exit code 3\): ValueError: broken .*step\.log"):
        shop.run([sys.executable, "-c", "print('ValueError: broken'); raise SystemExit(3)"], "step")


def test_w8a8_weights_come_back_within_half_a_step_of_their_scale(tmp_path):
    import torch
    from safetensors.torch import load_file, save_file

    plain = {"layer.up_proj.weight": torch.randn(6, 32).bfloat16(), "norm.weight": torch.ones(32).bfloat16()}
    (tmp_path / "plain").mkdir()
    save_file(plain, tmp_path / "plain" / "model.safetensors")
    (tmp_path / "plain" / "config.json").write_text('{"model_type": "qwen3"}')
    write_w8a8(tmp_path / "plain", tmp_path / "made")
    made = load_file(tmp_path / "made" / "model.safetensors")
    weight, scale = made["layer.up_proj.weight"], made["layer.up_proj.weight_scale"]
    assert (weight.dtype, scale.shape) == (torch.int8, (6, 1))
    assert bool(((weight * scale - plain["layer.up_proj.weight"].float()).abs() <= 0.5001 * scale).all())
    config = json.loads((tmp_path / "made" / "config.json").read_text())
    assert config["quantization_config"]["quant_method"] == "compressed-tensors"


def test_the_size_of_a_package_counts_what_it_needs_and_can_leave_torch_out():
    assert {"torch", "sympy", "numpy"} <= set(closure(["kvarn"]))
    assert {"torch", "sympy", "numpy"} & set(closure(["kvarn"], "torch")) == {"numpy"}
    found = installed_size(Path(sys.executable), ["kvarn"])
    assert found.version.startswith("kvarn ") and 10e6 < found.without_torch_bytes < found.size_bytes - 100e6


def measurement(engine: str, workload: str, rate: float = 10.0, turn: int = 0, **fields: Any) -> Measurement:
    """One answered request in each second of which `rate` tokens came."""
    answered = Record(index=0, scheduled_s=0.0, sent_s=0.0, end_s=0.2, asked_output_tokens=2, output_tokens=2)
    answered.chunk_times, answered.chunk_tokens = [0.1, 0.12], [1, 1]
    outcome = Outcome(
        records=[answered], duration_s=1.0, unfinished=0, interrupted=False, generator_cpu_s=0.0, started_at=0.0
    )
    summary = summarise(outcome, Slo(ttft_ms=2000.0))
    parts = {"output_tokens_per_s": rate, "requests_per_s": rate / 10, "wrong_length": fields.pop("wrong_length", 0)}
    summary = type(summary)(**{name: getattr(summary, name) for name in summary.__struct_fields__} | parts)
    who = {"shape": "0.6b", "precision": "bf16", "engine": engine, "round": turn, "load_before": 2.0}
    return Measurement(workload=workload, summary=summary, **(who | fields))


ROUNDS = [
    each
    for turn, noise in enumerate((0.5, 1.0, 1.1))
    for each in (
        measurement("kvarn", "W1", 20 * noise, turn),
        measurement("vllm", "W1", 10 * noise, turn),
        measurement("kvarn", "W3", 50, turn),
        measurement("vllm", "W3", 100, turn),
    )
] + [measurement("llama.cpp", "W3", 900, cut_after_s=300.0)]


def test_the_report_holds_medians_ratios_and_which_peer_is_faster():
    where = {"processor": "Two Cores", "cores": 2, "system": "Linux", "python": "3.11"}
    machine = Machine(started_at="2026-11-21T07:00:00+00:00", environment=where, settings={"rounds": 3})
    broken = Failure(shape="0.6b", precision="int8", engine="kvarn", round=0, reason="no such field")
    text = report([machine, *ROUNDS, broken])
    for line in (
        "2026-11-21, Two Cores, 2 cores",
        "| Kvarn | 20.0 (10.0 to 22.0) | 50.0 (50.0 to 50.0) |",
        "| llama.cpp | - | 900.0* |",
        "| Kvarn / best peer | 2.00x | 0.50x |",
        "* vLLM is 2.00 times as fast as Kvarn on W3 (0.6b shape, bf16)",
        "* kvarn, 0.6b shape, int8: no such field",
    ):
        assert line in text
    assert failures([broken, measurement("kvarn", "W1", precision="int8")]) == []
    assert not measurement("vllm", "W1", wrong_length=1).whole
    assert ratio(figures([*ROUNDS, measurement("kvarn", "W1", wrong_length=1)], "0.6b", "bf16"), "W1") is None


def test_records_outlive_an_interruption_in_the_middle_of_a_line(tmp_path):
    path = tmp_path / "new" / "results.jsonl"
    ledger = Ledger(path, resume=False)
    for record in ROUNDS:
        ledger.add(record)
    with path.open("ab") as file:
        file.write(b'{"type":"measure')
    with pytest.raises(RecordsError, match="--resume"):
        Ledger(path, resume=False)
    assert Ledger(path, resume=True).records == ROUNDS
    path.write_text('{"some": "thing"}\n')
    with pytest.raises(RecordsError, match="holds no results"):
        Ledger(path, resume=True)


def test_engines_take_turns_and_every_class_has_its_first_round_before_any_has_its_second():
    suite = Suite(shapes=["0.6b"], precisions=[Precision.BF16, Precision.INT4], workloads=["W1", "W3"], rounds=2)
    made = plan(suite, {name: each for name, each in engines(AMX).items() if name != "openvino"})
    assert [(each.round, str(each.precision), each.engine) for each in made] == [
        *((0, "bf16", name) for name in ("kvarn", "vllm", "llama.cpp")),
        *((0, "int4", name) for name in ("kvarn", "llama.cpp")),
        *((1, "bf16", name) for name in ("vllm", "llama.cpp", "kvarn")),
        *((1, "int4", name) for name in ("llama.cpp", "kvarn")),
    ]
    again = [each for each in made if each.round == 1 and each.precision == "bf16"]
    cut = [measurement("vllm", "W3", cut_after_s=300.0), measurement("kvarn", "W1", turn=1)]
    assert [left_of(each, cut).workloads for each in again] == [("W1",), ("W1", "W3"), ("W3",)]
    seeds = [seed_of(number, name) for number in range(5) for name in NAMES]
    assert len(set(seeds)) == len(seeds), "prompts differ between rounds and workloads"


def test_the_rate_of_w6_is_a_share_of_the_best_peers_on_w3_in_the_first_round():
    records = [
        measurement("kvarn", "W3", 90),
        measurement("vllm", "W3", 20),
        measurement("llama.cpp", "W3", 70, cut_after_s=300.0),
        measurement("vllm", "W3", 50, turn=1),
    ]
    assert chosen_rate(records, "0.6b", "bf16") == pytest.approx(1.6)
    assert chosen_rate(records, "1b", "bf16") is None


def test_a_list_on_the_command_line_names_what_it_does_not_know(capsys):
    asked = parse(["run", "--engines", "Kvarn,llama.CPP", "--workloads", "w1,W6", "--classes", "int8"])
    assert (asked.engines, asked.workloads, asked.classes) == (["kvarn", "llama.cpp"], ["W1", "W6"], [Precision.INT8])
    with pytest.raises(SystemExit):
        parse(["run", "--workloads", "W9"])
    assert "'w9' is not one of W1, W2" in capsys.readouterr().err
