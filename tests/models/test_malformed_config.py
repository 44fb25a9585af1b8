"""A broken or absurd checkpoint is refused in one line that names file, field and value."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kvarn.models import load_model
from kvarn.specs.errors import CheckpointError, ModelError, NotEnoughMemoryError
from oracles import change_config

Factory = Callable[..., tuple[Any, Path]]
LLAMA3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}

CASES: list[tuple[dict[str, Any], str]] = [
    ({"num_hidden_layers": 0}, "num_hidden_layers is 0: Input should be greater than or equal to 1"),
    ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000: Input should be less than or equal to 1024"),
    ({"num_hidden_layers": True}, "num_hidden_layers is True"),
    ({"num_hidden_layers": "3"}, "num_hidden_layers is '3': Input should be a valid integer"),
    ({"num_hidden_layers": 10**4000}, r"num_hidden_layers is 1000\d*\.\.\.0*:"),
    ({"num_hidden_layers": None}, "num_hidden_layers is missing"),
    ({"num_key_value_heads": 3}, r"num_attention_heads \(4\) must be a multiple of num_key_value_heads \(3\)"),
    ({"head_dim": 7}, "head_dim is 7"),
    ({"head_dim": None, "num_attention_heads": 32, "num_key_value_heads": 32}, "must be even"),
    ({"rope_parameters": None, "rope_theta": 0}, "rope_theta is 0"),
    ({"rope_parameters": {"rope_theta": float("nan")}}, r"rope_parameters\.rope_theta is nan"),
    ({"rope_parameters": "x"}, "rope_parameters is 'x'"),
    ({"rope_parameters": None, "rope_scaling": "x"}, "rope_scaling is 'x'"),
    ({"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 0}}, r"rope_scaling\.factor is 0"),
    ({"rope_parameters": {"rope_type": "linear"}}, r"rope_parameters\.factor is missing"),
    ({"rope_parameters": {**LLAMA3, "high_freq_factor": 1.0}}, "low_freq_factor and high_freq_factor must differ"),
    (
        {"rope_parameters": {**LONGROPE, "original_max_position_embeddings": 64}},
        "long_factor has 1 numbers, expected 8",
    ),
    ({"rope_parameters": {"full_attention": 7}}, r"rope_parameters\.full_attention is 7"),
    (
        {"architectures": ["Phi3ForCausalLM"], "partial_rotary_factor": 0.01},
        "partial_rotary_factor rotates 0 of 16",
    ),
    ({"layer_types": ["full_attention"]}, "layer_types must have an entry for each"),
    ({"layer_types": ["mamba"] * 3}, r"layer_types\.0 is 'mamba'"),
    ({"architectures": 5}, "architectures is 5"),
    ({"architectures": None, "model_type": "mamba"}, "model_type 'mamba'"),
    ({"model_type": []}, r"model_type is \[\]"),
    ({"dtype": "evil"}, "dtype is 'evil': expected a type of torch"),
    ({"dtype": None, "torch_dtype": "evil"}, "torch_dtype is 'evil'"),
    ({"eos_token_id": "x"}, "eos_token_id is 'x': expected a token id"),
    ({"eos_token_id": [1, -2]}, r"eos_token_id is \[1, -2\]"),
    ({"tie_word_embeddings": "no"}, "tie_word_embeddings is 'no'"),
    ({"quantization_config": 3}, "quantization_config is 3"),
    ({"quantization_config": {"quant_method": "gptq", "bits": "x"}}, r"quantization_config\.bits is 'x'"),
    (
        {"quantization_config": {"quant_method": "awq", "group_size": 1e99}},
        r"quantization_config\.group_size is 1e\+99",
    ),
    (
        {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"a": {"targets": 1}}}},
        r"quantization_config\.config_groups\.a\.targets is 1",
    ),
]


def refusal(path: Path, **options: Any) -> str:
    with pytest.raises((CheckpointError, ModelError)) as caught:
        load_model(path, **{"dtype": "float32", **options})
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 700
    return message


@pytest.mark.parametrize(("changes", "message"), CASES, ids=lambda value: str(value)[:60])
def test_a_wrong_field_of_the_configuration_is_named_with_its_value(
    checkpoint: Path, changes: dict[str, Any], message: str
) -> None:
    change_config(checkpoint, **changes)
    found = refusal(checkpoint)
    assert "config.json" in found
    assert re.search(message, found), found


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"a":' * 10_000 + "1" + "}" * 10_000, "nested too deeply"),
        ("[" * 100_000, "nested too deeply"),
        ("", "Cannot read"),
        ("[]", "should hold a JSON object"),
        ('{"vocab_size": ' + "9" * 5000 + "}", "Cannot read"),
        ("\udcff", "Cannot read"),
    ],
    ids=["deep", "deeper", "empty", "list", "digits", "bytes"],
)
@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
def test_json_that_cannot_be_read_is_refused(checkpoint: Path, name: str, content: str, message: str) -> None:
    if name != "config.json":
        (checkpoint / "model.safetensors").unlink()
    (checkpoint / name).write_bytes(content.encode("utf-8", "surrogateescape"))
    found = refusal(checkpoint)
    assert name in found
    assert message in found


@pytest.mark.parametrize("content", ["x", 5, {"a": 1}, {"a": ""}, {"a": ".."}, {"a": ["b"]}])
def test_an_index_that_names_no_files_is_refused(checkpoint: Path, content: object) -> None:
    (checkpoint / "model.safetensors").unlink()
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps({"weight_map": content}))
    assert "model.safetensors.index.json" in refusal(checkpoint)


def test_a_configuration_of_many_gigabytes_is_not_read(checkpoint: Path) -> None:
    with (checkpoint / "config.json").open("wb") as file:
        file.truncate(40 * 1024**3)
    assert "it has 42949672960 bytes" in refusal(checkpoint)


def write_header(path: Path, tensors: dict[str, tuple[int, ...]], size: int | None = None) -> None:
    """A sparse safetensors file: a header and nothing behind it but holes."""
    header, end = {}, 0
    for name, shape in tensors.items():
        begin, end = end, end + 4 * int(torch.tensor(shape).prod())
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    content = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(content).to_bytes(8, "little") + content)
        file.truncate(8 + len(content) + (end if size is None else size))


def test_weights_that_the_machine_cannot_hold_are_refused_before_they_are_read(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").unlink()
    names = {f"layer.{index}": f"{index}.safetensors" for index in range(512)}
    for name, file in names.items():
        write_header(checkpoint / file, {name: (2**15, 2**16)})
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    found = refusal(checkpoint)
    assert "the weights take 4096.0 GiB" in found
    assert "this machine has" in found
    assert "the weights take 1024.0 GiB" in refusal(checkpoint, quantization="int8")


def test_a_file_too_large_to_map_is_refused_with_its_size(checkpoint: Path) -> None:
    write_header(checkpoint / "model.safetensors", {"model.embed_tokens.weight": (2**20, 2**20)})
    assert "4096.0 GiB" in refusal(checkpoint)


def test_a_file_much_larger_than_its_header_says_is_refused(checkpoint: Path) -> None:
    write_header(checkpoint / "model.safetensors", {"model.embed_tokens.weight": (4, 4)}, size=40 * 1024**3)
    assert "model.safetensors is not a readable safetensors file" in refusal(checkpoint)


def test_a_context_whose_cache_the_machine_cannot_hold_is_refused(checkpoint: Path) -> None:
    change_config(checkpoint, max_position_embeddings=2**31 - 1)
    with pytest.raises(NotEnoughMemoryError, match=r"KV cache of one context \d+\.\d GiB.*lower max_context_length"):
        load_model(checkpoint, dtype="float32", max_context_length=2**31 - 1)
    for length in (None, 64):  # where nobody asked for a length, one that fits is planned with the KV cache
        model = load_model(checkpoint, dtype="float32", max_context_length=length)
        assert model.spec.max_context_length == (length or 2**31 - 1)
