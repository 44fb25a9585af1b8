"""The benchmarks folder: workloads, made checkpoints, the runner."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from benchmarks.models import SHAPES, Shape, to_bfloat16, write_tokenizer, write_weights
from benchmarks.server import process_tree, pss_bytes
from benchmarks.workloads import WORKLOADS

from kvarn.traffic.workload import Vocabulary

ROOT = Path(__file__).resolve().parents[2]


def test_workloads_are_those_the_peers_were_measured_with():
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
    sizes = {name: sum(int(np.prod(each)) for each in shape.tensors().values()) for name, shape in SHAPES.items()}
    assert sizes["0.6b"] == pytest.approx(473e6, rel=0.002)
    assert sizes["1b"] == pytest.approx(1.04e9, rel=0.002)


@pytest.mark.thorough
@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_a_made_checkpoint_is_whole_to_transformers(tmp_path, family):
    import torch
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

    values = np.random.default_rng(0).standard_normal(4096, dtype=np.float32)
    expected = torch.from_numpy(values).bfloat16().view(torch.int16).numpy().view(np.uint16)
    assert np.array_equal(to_bfloat16(values), expected)


def test_memory_counts_a_process_and_its_children():
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
