"""`kvarn plan` as it is typed: a table of 80 columns, JSON, a page; errors that say what to do."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from kvarn.cli.main import app
from kvarn.planner import plan
from kvarn.planner.answer import Candidate, Plan
from kvarn.planner.request import PlanRequest
from profiles import THOROUGH

GUIDE = Path(__file__).parents[2] / "docs/guides/plan.md"
FAST = ("--rps", "5", "--ttft", "0.5", "--tpot", "0.05", "--weights", "plain", "-tp", "1", "--no-disaggregation")


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["plan", *arguments])
    return done.exit_code, done.output


def test_the_table_fits_in_80_columns_and_names_replicas_cost_and_settings():
    code, output = run("Qwen/Qwen3-8B", "--api-price", "0.15:0.60", "--training", "sft-lora", *FAST)
    assert code == 0
    assert max(map(len, output.splitlines())) <= 80
    for words in ("1 replica of H100", "$/h", "memory", "KV cache", "floors", "break-even", "max_num_seqs", "sft-lora"):
        assert words in output


def test_a_folder_with_a_config_is_planned_and_written_as_json_and_as_a_page(tmp_path: Path):
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_hidden_layers": 8,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
    }
    (tmp_path / "small").mkdir()
    (tmp_path / "small/config.json").write_text(json.dumps(config))
    page = tmp_path / "plan.html"
    code, output = run(str(tmp_path / "small"), *FAST, "--json", "-", "--html", str(page))
    found = json.loads(output)
    assert code == 0
    assert found["model"] == "small"
    assert found["candidates"][0]["devices"] == 1
    assert page.read_text().startswith("<!DOCTYPE html>")


def test_a_preset_of_traffic_or_a_trace_gives_the_lengths(tmp_path: Path):
    code, output = run("Qwen/Qwen3-8B", "--traffic", "azure-conv", *FAST)
    assert code == 0
    assert "5 requests/s of 1,1" in output
    trace = tmp_path / "trace.csv"
    rows = "".join(f"2024-05-10 00:00:{second:02}.000,600,50\n" for second in range(20))
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    code, output = run("Qwen/Qwen3-8B", "--trace", str(trace), *FAST[2:])
    assert code == 0
    assert "requests/s of 600 + 50 tokens" in output


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("Llama-3.1-70B", *FAST), 1, "141.1 GB"),
        (("Qwen/Qwen3-8C",), 2, "Qwen/Qwen3-8B"),
        (("Qwen/Qwen3-8B", "--gpu", "h1000"), 2, "h100"),
        (("Qwen/Qwen3-8B", "--gpu", "b300"), 2, "--price b300"),
        (("Qwen/Qwen3-8B", "--price", "h100"), 2, "h100=2.50"),
        (("Qwen/Qwen3-8B", "--api-price", "1"), 2, "0.15:0.60"),
        (("Qwen/Qwen3-8B", "--traffic", "azure"), 2, "azure-conv"),
        (("Qwen/Qwen3-8B", "--traffic", "azure-conv", "--input", "5"), 2, "give one"),
        (("Qwen/Qwen3-8B", "--weights", "int3"), 2, "weights"),
        (("Qwen/Qwen3-8B", "-tp", "3"), 2, "tensor_parallel"),
        (("Qwen/Qwen3-8B", "--training", "rlhf"), 2, "sft, dpo, ppo or grpo"),
        (("Qwen/Qwen3-8B", "--devices", "missing.toml"), 2, "missing.toml"),
    ],
)
def test_questions_without_an_answer_say_what_to_change(arguments: tuple[str, ...], code: int, words: str):
    assert (code, True) == ((done := run(*arguments))[0], words in done[1].replace("\n", " ")), done


def test_a_plan_imports_no_torch():
    run_it = "app(['plan', 'Qwen/Qwen3-0.6B', '-tp', '1'], standalone_mode=False)"
    code = f"import sys; from kvarn.cli.main import app; {run_it}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode == 0


def test_the_guides_commands_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The first few as printed; all of them in the thorough profile."""
    monkeypatch.chdir(tmp_path)
    text = GUIDE.read_text(encoding="utf-8")
    Path("devices.toml").write_text(re.findall(r"```toml\n(.*?)```", text, re.DOTALL)[0])
    entry = '{"timestamp": %d, "input_length": 700, "output_length": 80, "hash_ids": [1, %d]}\n'
    Path("conversation.jsonl").write_text("".join(entry % (500 * index, 2 + index) for index in range(50)))
    replica = plan(PlanRequest(model="Qwen/Qwen3-8B")).candidates[0].replica
    Path("calibration.json").write_bytes(msgspec.json.encode({"replica": replica}))
    commands = re.findall(r"^kvarn plan (.+)$|`kvarn plan ([^`]+)`", text, re.MULTILINE)
    told = [first or second for first, second in commands if (first or second) != "--help"]
    assert len(told) >= 10
    quick = [each for each in told if "--optimise" not in each]  # a search takes minutes
    for arguments in told if THOROUGH else [quick[0], *quick[-2:]]:
        code, output = run(*shlex.split(arguments))
        assert code == 0, (arguments, output)


def test_the_guide_names_each_field_of_the_json():
    text = GUIDE.read_text(encoding="utf-8")
    for field in (*Plan.__struct_fields__, *Candidate.__struct_fields__):
        assert f"`{field}`" in text, field
