"""The benchmarks folder: workloads, made checkpoints, static batching, the runner."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kvarn.bench.target import Target
from kvarn.bench.workload import Vocabulary
from profiles import thorough

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def benchmarks_can_be_imported(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))


def test_workloads_are_those_the_peers_were_measured_with():
    from benchmarks.workloads import WORKLOADS

    sizes = {
        each.name: (each.concurrency, each.requests, each.shared_prefix, each.prompt, each.output)
        for each in WORKLOADS.values()
    }
    assert sizes == {
        "W1": (1, 4, 0, 128, 64),
        "W2": (8, 24, 0, 256, 64),
        "W3": (32, 64, 0, 128, 128),
        "W4": (8, 24, 1024, 32, 32),
        "W5": (4, 8, 0, 1024, 8),
    }
    assert WORKLOADS["W4"].warm_requests == 1
    made = WORKLOADS["W4"].make(seed=3)
    first, second = (each.token_ids(Vocabulary(), 3) for each in made[:2])
    assert len(first) == 1056
    assert first[:1024] == second[:1024]
    assert first[1024] != second[1024]


def test_the_shapes_have_the_published_sizes():
    from benchmarks.models import SHAPES

    sizes = {name: sum(int(np.prod(each)) for each in shape.tensors().values()) for name, shape in SHAPES.items()}
    assert sizes["0.6b"] == pytest.approx(473e6, rel=0.002)
    assert sizes["1b"] == pytest.approx(1.04e9, rel=0.002)


@pytest.mark.parametrize("family", ["qwen3", thorough("llama")])
def test_a_made_checkpoint_is_whole_to_transformers(tmp_path, family):
    import torch
    from benchmarks.models import Shape, write_tokenizer, write_weights
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    torch.set_num_threads(1)
    shape = Shape("tiny", family, 32, 64, layers=2, heads=4, kv_heads=2, head_dim=16, vocab=400, context=128)
    write_tokenizer(tmp_path, shape.vocab, shape.context, source_files=3)
    write_weights(tmp_path / "model.safetensors", shape)
    (tmp_path / "config.json").write_text(json.dumps(shape.config()))
    model, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert model.dtype == torch.bfloat16
    assert torch.all(model.model.norm.weight == 1)
    assert float(model.lm_head.weight.detach().float().std()) == pytest.approx(0.02, rel=0.1)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert len(tokenizer) == 400
    assert tokenizer.decode(tokenizer("def räksmörgås():\n")["input_ids"]) == "def räksmörgås():\n"
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert chat == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_bfloat16_rounds_to_nearest_even_like_torch():
    import torch
    from benchmarks.models import to_bfloat16

    values = np.random.default_rng(0).standard_normal(4096, dtype=np.float32)
    expected = torch.from_numpy(values).bfloat16().view(torch.int16).numpy().view(np.uint16)
    assert np.array_equal(to_bfloat16(values), expected)


def test_mixed_lengths_are_log_uniform_and_seeded():
    from benchmarks.static_batching import mixed_requests

    made = mixed_requests(4000, (16, 128), (8, 256), seed=5)
    outputs = [each.output_tokens for each in made]
    assert (min(outputs), max(outputs)) == (8, 256)
    assert np.median(outputs) == pytest.approx(np.sqrt(8 * 257), rel=0.1)
    assert made == mixed_requests(4000, (16, 128), (8, 256), seed=5)


def test_static_batching_waits_for_the_longest_and_counts_only_useful_tokens(serve, behaviour):
    from benchmarks.static_batching import batches, mixed_requests, tokens_per_second

    requests = mixed_requests(10, (4, 8), (2, 20), seed=1)
    padded, lean = batches(requests, "padded", 4), batches(requests, "lean", 4)
    assert [len(group) for group in padded] == [len(group) for group in lean] == [4, 4, 2]
    assert all(len({each.output_tokens for each in group}) == 1 for group in padded)
    assert max(each.output_tokens for each in lean[0]) == padded[0][0].output_tokens
    assert [each for group in lean for each in group] == requests == batches(requests, "continuous", 4)[0]

    server = serve(behaviour(gap_s=0.002))
    rate = tokens_per_second(requests, "padded", 4, Target(url=server.url, model="m"))
    assert server.most_running == 4
    generated = sum(body["max_tokens"] for body in server.bodies)
    useful = sum(each.output_tokens for each in requests)
    assert generated > useful
    waited_for = sum((group[0].output_tokens - 1) * 0.002 for group in padded)
    assert 0 < rate < useful / waited_for


def test_the_ratio_is_the_median_of_the_rounds():
    from benchmarks.static_batching import ratios

    found = {"continuous": [20.0, 30.0, 40.0], "padded": [10.0, 10.0, 10.0], "lean": [20.0, 20.0, 10.0]}
    assert ratios(found) == {"padded": 3.0, "lean": 1.5}


def test_memory_counts_a_process_and_its_children():
    from benchmarks.server import process_tree, pss_bytes

    script = "import time; held = bytearray(30_000_000); print('ready', flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    try:
        child.stdout.readline()
        assert child.pid in process_tree(os.getpid())
        assert pss_bytes(child.pid) > 30_000_000
    finally:
        child.kill()
        child.communicate()
    assert pss_bytes(child.pid) == 0


def test_the_runner_measures_a_running_server_and_writes_its_table(serve, behaviour, tmp_path):
    server, out = serve(behaviour(cached_tokens=16)), tmp_path / "out.json"
    command = [sys.executable, "-m", "benchmarks.run", "--url", server.url, "--model", "m", "--shape", "demo"]
    command += ["--workloads", "w1,W4", "--no-warm-up", "--json", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "W1" in done.stdout
    read = json.loads(out.read_text())
    summaries = {result["workload"]: result["summary"] for result in read["results"]}
    assert (summaries["W1"]["output_tokens"], summaries["W4"]["output_tokens"]) == (256, 768)
    assert summaries["W4"]["goodput"]["ratio"] == 1.0
    assert len(server.bodies) == 4 + 1 + 24
    server.behaviour.usage = False
    assert subprocess.run(command, capture_output=True, timeout=60, check=False, cwd=ROOT).returncode == 1


def test_the_runner_refuses_an_unknown_workload():
    command = [sys.executable, "-m", "benchmarks.run", "--workloads", "W9"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
    assert done.returncode == 2
    assert "'W9' is not one of W1, W2" in done.stderr
