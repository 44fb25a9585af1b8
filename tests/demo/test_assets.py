"""The packaged demo model is complete, small, well-formed, and renders conversations as OpenAI clients send them."""

from __future__ import annotations

import json
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import Template
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

import kvarn
from profiles import examples

ASSETS = Path(kvarn.__file__).parent / "assets"
MODELS = ("kvarn-demo", "kvarn-demo-draft")
ADAPTERS = ("pirate", "json")
MEBIBYTE = 1024 * 1024

WEATHER_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def read_json(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return value


def read_header(path: Path) -> dict[str, Any]:
    """The header of a safetensors file: names to dtype, shape and offsets."""
    with path.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        header: dict[str, Any] = json.loads(stream.read(length))
    header.pop("__metadata__", None)
    return header


def golden() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (ASSETS / "golden.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(ASSETS / "kvarn-demo" / "tokenizer.json"))


@pytest.fixture(scope="module")
def template() -> Template:
    source = read_json(ASSETS / "kvarn-demo" / "tokenizer_config.json")["chat_template"]
    return ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(source)


def render(template: Template, messages: list[dict[str, Any]], **options: Any) -> str:
    return template.render(messages=messages, **{"add_generation_prompt": True, **options})


def test_the_package_stays_small():
    size = sum(path.stat().st_size for path in ASSETS.rglob("*") if path.is_file())
    assert size <= 17 * MEBIBYTE


@pytest.mark.parametrize("name", MODELS)
def test_weights_have_exactly_the_tensors_and_shapes_the_configuration_asks_for(name):
    config = read_json(ASSETS / name / "config.json")
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    expected = {"model.embed_tokens.weight": [config["vocab_size"], hidden], "model.norm.weight": [hidden]}
    for index in range(config["num_hidden_layers"]):
        shapes = {
            "input_layernorm": [hidden],
            "post_attention_layernorm": [hidden],
            "self_attn.q_proj": [queries, hidden],
            "self_attn.k_proj": [keys, hidden],
            "self_attn.v_proj": [keys, hidden],
            "self_attn.o_proj": [hidden, queries],
            "mlp.gate_proj": [inner, hidden],
            "mlp.up_proj": [inner, hidden],
            "mlp.down_proj": [hidden, inner],
        }
        expected |= {f"model.layers.{index}.{part}.weight": shape for part, shape in shapes.items()}
    header = read_header(ASSETS / name / "model.safetensors")
    assert {tensor: entry["shape"] for tensor, entry in header.items()} == expected
    assert {entry["dtype"] for entry in header.values()} == {"BF16"}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_says_it_is_a_tied_llama_that_ends_with_im_end(name, tokenizer):
    config = read_json(ASSETS / name / "config.json")
    generation = read_json(ASSETS / name / "generation_config.json")
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["tie_word_embeddings"] is True
    assert config["max_position_embeddings"] == 2048
    assert config["vocab_size"] == tokenizer.get_vocab_size() <= 4096
    assert config["eos_token_id"] == tokenizer.token_to_id("<|im_end|>")
    assert config["eos_token_id"] in generation["eos_token_id"]
    assert generation["do_sample"] is False


def test_model_and_draft_share_one_tokenizer_and_template():
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (ASSETS / MODELS[0] / file).read_bytes() == (ASSETS / MODELS[1] / file).read_bytes()


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_fits_the_base_model(name):
    adapter = read_json(ASSETS / "adapters" / name / "adapter_config.json")
    tensors = read_header(ASSETS / "adapters" / name / "adapter_model.safetensors")
    base = read_header(ASSETS / "kvarn-demo" / "model.safetensors")
    assert adapter["peft_type"] == "LORA"
    assert adapter["base_model_name_or_path"] == "kvarn-demo"
    adapted = [key for key in base if key.split(".")[-2] in adapter["target_modules"]]
    assert len(tensors) == 2 * len(adapted)
    for key in adapted:
        outputs, inputs = base[key]["shape"]
        prefix = "base_model.model." + key.removesuffix(".weight")
        assert tensors[f"{prefix}.lora_A.weight"]["shape"] == [adapter["r"], inputs]
        assert tensors[f"{prefix}.lora_B.weight"]["shape"] == [outputs, adapter["r"]]


@given(st.text())
@settings(max_examples=examples(300))
def test_any_text_survives_the_tokenizer(text):
    tokenizer = Tokenizer.from_file(str(ASSETS / "kvarn-demo" / "tokenizer.json"))
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


@given(st.integers(min_value=0, max_value=10**12))
@settings(max_examples=examples(50))
def test_every_digit_is_a_token_of_its_own(number):
    tokenizer = Tokenizer.from_file(str(ASSETS / "kvarn-demo" / "tokenizer.json"))
    assert tokenizer.encode(str(number), add_special_tokens=False).tokens == list(str(number))


def test_chat_markers_are_single_special_tokens(tokenizer):
    ids = tokenizer.encode("<|im_start|>user\nHi<|im_end|>", add_special_tokens=False).ids
    assert ids[0] == tokenizer.token_to_id("<|im_start|>")
    assert ids[-1] == tokenizer.token_to_id("<|im_end|>")
    assert tokenizer.decode(ids, skip_special_tokens=True) == "user\nHi"


def test_tool_call_marks_are_single_tokens_that_are_not_skipped(tokenizer):
    text = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert ids[0] == tokenizer.token_to_id("<tool_call>")
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_a_plain_conversation_renders_turn_by_turn(template):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "Bye"},
    ]
    assert render(template, messages) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("system", [None, "Be brief."])
def test_tools_are_described_in_the_system_turn(template, system):
    messages = [{"role": "system", "content": system}] if system else []
    rendered = render(template, [*messages, {"role": "user", "content": "Hi"}], tools=[WEATHER_TOOL])
    system_turn = rendered.split("<|im_end|>")[0]
    assert system_turn.startswith("<|im_start|>system\n" + (system or "Tools:"))
    described = json.loads(system_turn.splitlines()[-1])
    assert described == WEATHER_TOOL["function"]


@pytest.mark.parametrize("content", [None, ""])
@pytest.mark.parametrize("arguments", ['{"city": "Oslo"}', {"city": "Oslo"}])
def test_a_tool_call_renders_as_the_model_writes_it(template, content, arguments):
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "Weather in Oslo?"},
        {"role": "assistant", "content": content, "tool_calls": [call, call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    written = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    assert render(template, messages) == (
        "<|im_start|>user\nWeather in Oslo?<|im_end|>\n"
        f"<|im_start|>assistant\n{written}\n{written}<|im_end|>\n"
        "<|im_start|>tool\nsunny<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_golden_set_is_well_formed():
    entries = golden()
    assert len({entry["id"] for entry in entries}) == len(entries) >= 200
    for entry in entries:
        assert entry["answer"] and isinstance(entry["held_out"], bool)
        assert entry["messages"][-1]["role"] in ("user", "tool")


def test_the_golden_set_covers_every_skill_and_holds_some_out():
    counts = Counter(entry["category"] for entry in golden())
    held_out = Counter(entry["category"] for entry in golden() if entry["held_out"])
    skills = "facts sums extraction tool_calls tool_answers small_talk off_topic counting multi_turn long_answers"
    assert set(counts) == set(skills.split())
    for category in ("facts", "sums", "extraction", "tool_calls"):
        assert held_out[category] >= 10


def test_golden_answers_in_json_and_tool_calls_parse(template):
    for entry in golden():
        if entry["category"] == "extraction":
            assert isinstance(json.loads(entry["answer"]), dict)
        if entry["category"] == "tool_calls":
            body = entry["answer"].removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")
            names = [tool["function"]["name"] for tool in entry["tools"]]
            assert json.loads(body)["name"] in names


def test_every_golden_question_fits_the_context(template, tokenizer):
    for entry in golden():
        text = render(template, entry["messages"], tools=entry.get("tools")) + entry["answer"]
        assert len(tokenizer.encode(text, add_special_tokens=False).ids) < 512
