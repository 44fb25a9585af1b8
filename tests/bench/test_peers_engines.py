"""The suite against peers: command lines of the engines, obstacles, sizes, starting and stopping a server."""

from __future__ import annotations

import json
import os
import sys
import textwrap
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
AVX2, AMX = frozenset({"avx2", "fma"}), frozenset({"avx2", "avx512f", "avx512_bf16", "amx_bf16"})


@pytest.fixture(autouse=True)
def benchmarks_can_be_imported(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))


@pytest.fixture
def shop(tmp_path):
    from benchmarks.peers.workshop import Workshop

    return Workshop(tmp_path / "cache", tmp_path / "models")


def case(precision, shape="0.6b"):
    from benchmarks.models import SHAPES
    from benchmarks.peers.engines.base import Case, Precision

    return Case(SHAPES[shape], Precision(precision))


def value(command, flag):
    return command[command.index(flag) + 1]


def test_every_engine_offers_the_classes_it_is_compared_in():
    from benchmarks.peers.engines import ENGINES
    from benchmarks.peers.engines.base import Precision

    offered = {name: [str(each) for each in Precision if one.precision_note(each)] for name, one in ENGINES.items()}
    assert offered == {
        "kvarn": ["bf16", "int8", "int4"],
        "vllm": ["bf16", "int8"],
        "vllm-f32": ["bf16", "int8"],
        "llama.cpp": ["bf16", "int8", "int4"],
        "openvino": ["bf16", "int8", "int4"],
        "transformers": ["bf16"],
    }


def test_float32_stands_beside_bfloat16_only_where_the_processor_does_not_multiply_it():
    from benchmarks.peers.engines import default_engines
    from benchmarks.peers.engines.openvino_genai import compute_precision

    assert "vllm-f32" in default_engines(AVX2)
    assert "vllm-f32" not in default_engines(AMX)
    assert (compute_precision(AVX2), compute_precision(AMX)) == ("f32", "bf16")


@pytest.mark.parametrize(
    ("precision", "settings"),
    [("bf16", {"dtype": "bfloat16"}), ("int8", {"quantization": "int8"}), ("int4", {"quantization": "int4"})],
)
def test_kvarn_is_told_its_precision_in_its_configuration(shop, precision, settings):
    from benchmarks.peers.engines import ENGINES

    command = ENGINES["kvarn"].launch(shop, case(precision), 4321).command
    read = json.loads(Path(value(command, "--config")).read_text())
    model = read["models"][0]
    assert read["gateway"] == {"port": 4321}
    assert {key: model.get(key) for key in ("dtype", "quantization") if key in model} == settings
    assert model["path"] == str(shop.models / "qwen3-0.6b-shape")


@pytest.mark.parametrize("name", ["kvarn", "vllm", "vllm-f32", "llama.cpp", "openvino", "transformers"])
def test_what_is_not_prepared_is_an_obstacle_and_no_crash(shop, name):
    from benchmarks.peers.engines import ENGINES

    assert "benchmarks.peers prepare" in ENGINES[name].obstacle(shop, case("bf16"))


def test_the_peers_get_the_same_port_threads_and_model_in_their_own_words(shop):
    from benchmarks.peers.engines import ENGINES

    threads = str(len(os.sched_getaffinity(0)))
    vllm = ENGINES["vllm-f32"].launch(shop, case("int8"), 4321)
    assert vllm.command[1:3] == ["serve", str(shop.cache / "vllm" / "models" / "qwen3-0.6b-shape-int8")]
    assert (value(vllm.command, "--port"), value(vllm.command, "--dtype")) == ("4321", "float32")
    assert len(vllm.environment["VLLM_CPU_OMP_THREADS_BIND"].split(",")) == int(threads)

    llama = ENGINES["llama.cpp"].launch(shop, case("int4"), 4321).command
    assert value(llama, "--model").endswith("qwen3-0.6b-shape-Q4_0.gguf")
    assert (value(llama, "--threads"), value(llama, "--threads-batch")) == (threads, threads)
    slot = int(value(llama, "--ctx-size")) // int(value(llama, "--parallel"))
    assert slot >= 1024 + 32 + 32

    for name, model in (("openvino", "openvino/models/qwen3-0.6b-shape-bf16"), ("transformers", "qwen3-0.6b-shape")):
        launch = ENGINES[name].launch(shop, case("bf16"), 4321)
        assert (value(launch.command, "--port"), value(launch.command, "--threads")) == ("4321", threads)
        assert value(launch.command, "--model").endswith(model)
        assert launch.folder == ROOT


def test_a_wheel_without_kernels_for_the_processor_is_said_so(tmp_path):
    from benchmarks.peers.engines.vllm_cpu import missing_kernels

    assert "no kernels without AVX-512" in missing_kernels(tmp_path, AVX2)
    assert "needs AVX2" in missing_kernels(tmp_path, frozenset({"sse4_2"}))
    assert missing_kernels(tmp_path, AMX) is None
    (tmp_path / "_C_AVX2.abi3.so").touch()
    assert missing_kernels(tmp_path, AVX2) is None


def test_w8a8_weights_come_back_within_half_a_step_of_their_scale(tmp_path):
    import torch
    from benchmarks.peers.quantise import write_w8a8
    from safetensors.torch import load_file, save_file

    torch.manual_seed(0)
    plain = {"layer.up_proj.weight": torch.randn(6, 32).bfloat16(), "norm.weight": torch.ones(32).bfloat16()}
    (tmp_path / "plain").mkdir()
    save_file(plain, tmp_path / "plain" / "model.safetensors")
    (tmp_path / "plain" / "config.json").write_text('{"model_type": "qwen3"}')
    (tmp_path / "plain" / "tokenizer.json").write_text("{}")
    write_w8a8(tmp_path / "plain", tmp_path / "made")
    made = load_file(tmp_path / "made" / "model.safetensors")
    weight, scale = made["layer.up_proj.weight"], made["layer.up_proj.weight_scale"]
    assert (weight.dtype, scale.shape) == (torch.int8, (6, 1))
    assert bool(((weight * scale - plain["layer.up_proj.weight"].float()).abs() <= 0.5001 * scale).all())
    assert torch.equal(made["norm.weight"], plain["norm.weight"])
    config = json.loads((tmp_path / "made" / "config.json").read_text())
    assert config["model_type"] == "qwen3"
    assert config["quantization_config"]["quant_method"] == "compressed-tensors"
    assert (tmp_path / "made" / "tokenizer.json").exists()


def test_the_size_of_a_package_counts_what_it_needs_and_can_leave_torch_out():
    from benchmarks.peers.sizes import closure, installed_size

    whole, lean = closure(["kvarn"]), closure(["kvarn"], frozenset({"torch"}))
    assert {"torch", "sympy", "numpy"} <= set(whole)
    assert "numpy" in lean
    assert not {"torch", "sympy"} & set(lean)
    found = installed_size(Path(sys.executable), ["kvarn"])
    assert found.version.startswith("kvarn ")
    assert 10e6 < found.without_torch_bytes < found.size_bytes - 100e6


def test_the_reason_is_the_first_named_error_of_a_log(tmp_path):
    from benchmarks.peers.workshop import reason_in

    log = tmp_path / "log"
    log.write_text("starting\n(EngineCore pid=7) ValueError: no such model\nTraceback\nRuntimeError: see above\nbye\n")
    assert reason_in(log) == "ValueError: no such model"
    log.write_text('level=error msg="starting\\nTraceback\\nKeyError: quantization"\n')
    assert reason_in(log).startswith("KeyError: quantization")
    log.write_text("starting\nout of luck\n\n")
    assert reason_in(log) == "out of luck"
    assert reason_in(tmp_path / "none") == "it said nothing"


def test_a_failing_command_of_the_preparation_says_what_and_where(shop):
    from benchmarks.peers.workshop import PrepareError

    with pytest.raises(PrepareError, match=r"exit code 3\): ValueError: broken .*step\.log"):
        shop.run([sys.executable, "-c", "print('ValueError: broken'); raise SystemExit(3)"], "step")
    with pytest.raises(PrepareError, match="No such file"):
        shop.run(["/no/such/tool"], "step")


SERVER = textwrap.dedent(
    """
    import sys, subprocess, time
    from benchmarks.peers.wrappers.front import serve
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print("started", child.pid, flush=True)
    def engine(inbox):
        time.sleep(0.3)
        while True:
            job = inbox.get()
            for place in range(job.max_tokens):
                job.emit([place], place + 1 == job.max_tokens)
    serve(engine, int(sys.argv[1]))
    """
)


def test_a_server_is_timed_to_its_first_answer_and_leaves_nothing_behind(tmp_path):
    from benchmarks.peers.engines.base import Launch
    from benchmarks.peers.process import running
    from benchmarks.server import free_port

    port, log = free_port(), tmp_path / "log"
    launch = Launch([sys.executable, "-c", SERVER, str(port)], {"PYTHONPATH": str(ROOT)})
    with running(launch, port, log, limit_s=60) as server:
        assert server.first_answer_s >= 0.3
        assert server.peak_pss_bytes() > 5e6
        child = int(log.read_text().split("\nstarted ")[1].split()[0])
        assert Path(f"/proc/{child}").exists()
    for _ in range(100):  # it was told to end; on a busy machine that takes a moment
        if has_ended(child):
            break
        time.sleep(0.05)
    assert has_ended(child)


def has_ended(pid):
    """Gone, or only waiting to be collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("print('KeyError: quantization'); raise SystemExit(1)", r"exit code 1\): KeyError: quantization"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "SIGILL: it uses instructions"),
        ("import time; time.sleep(60)", "no answer within 1 s"),
    ],
)
def test_a_server_that_does_not_start_says_why(tmp_path, program, said):
    from benchmarks.peers.engines.base import Launch
    from benchmarks.peers.process import StartError, running
    from benchmarks.server import free_port

    launch = Launch([sys.executable, "-c", program])
    with pytest.raises(StartError, match=said), running(launch, free_port(), tmp_path / "log", limit_s=1):
        pass
