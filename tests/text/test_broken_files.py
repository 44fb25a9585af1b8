"""Text files of a checkpoint that are broken or absurd are refused in one line that names the file and the field."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from kvarn.text.chat_template import ChatTemplate
from kvarn.text.config_files import ignored_fields, read_generation_config
from kvarn.text.errors import CheckpointError, TextError
from kvarn.text.tokenizer import Tokenizer

DEEP = '{"a":' * 100_000 + "1" + "}" * 100_000


def load(directory: Path) -> None:
    ChatTemplate.load(directory)
    Tokenizer.load(directory)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("generation_config.json", DEEP, "nested too deeply"),
        ("generation_config.json", "[", "Cannot read"),
        ("generation_config.json", "7", "JSON object"),
        ("generation_config.json", '{"eos_token_id": "x"}', "eos_token_id is 'x': expected a token id"),
        ("generation_config.json", '{"eos_token_id": [1, 1e400]}', "eos_token_id is"),
        ("generation_config.json", '{"temperature": -1}', "temperature is -1"),
        ("generation_config.json", '{"temperature": NaN}', "temperature is nan"),
        ("generation_config.json", '{"top_k": 1.5}', "top_k is 1.5"),
        ("generation_config.json", '{"top_p": 2}', "top_p is 2"),
        ("generation_config.json", '{"do_sample": "no"}', "do_sample is 'no'"),
        ("generation_config.json", '{"repetition_penalty": 0}', "repetition_penalty is 0"),
        ("generation_config.json", '{"max_new_tokens": 0}', "max_new_tokens is 0"),
        ("config.json", '{"eos_token_id": {}}', "eos_token_id is {}"),
        *((name, DEEP, "nested too deeply") for name in ("config.json", "special_tokens_map.json")),
        *((name, "[]", "JSON object") for name in ("config.json", "special_tokens_map.json", "tokenizer_config.json")),
        ("added_tokens.json", DEEP, "nested too deeply"),
        ("chat_template.json", DEEP, "nested too deeply"),
        ("tokenizer_config.json", DEEP, "nested too deeply"),
        ("tokenizer_config.json", "\0", "Cannot read"),
        ("tokenizer_config.json", '{"chat_template": 5}', "chat_template is 5"),
        ("tokenizer_config.json", '{"chat_template": [5]}', "chat_template is [5]"),
        ("tokenizer_config.json", '{"model_max_length": "x"}', "model_max_length is 'x'"),
        ("tokenizer_config.json", '{"eos_token": 5}', "eos_token is 5"),
        ("tokenizer.json", DEEP, "Cannot read"),
        ("tokenizer.json", "{}", "Cannot read"),
        ("tokenizer.json", '{"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}', "Cannot read"),
        ("tokenizer.json", '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["x", "y"]]}}', "Cannot read"),
    ],
    ids=lambda value: value[:40],
)
def test_a_broken_file_is_refused_with_its_name(checkpoint, name, content, message):
    directory = checkpoint("byte_level")
    (directory / name).write_text(content)
    with pytest.raises(TextError) as caught:
        load(directory)
    found = str(caught.value)
    assert name in found
    assert re.search(re.escape(message), found), found
    assert "\n" not in found
    assert len(found) < 600


@pytest.mark.parametrize("name", ["generation_config.json", "tokenizer_config.json", "tokenizer.json"])
def test_a_file_of_many_gigabytes_is_not_read(checkpoint: Callable[..., Path], name: str) -> None:
    directory = checkpoint("byte_level")
    with (directory / name).open("wb") as file:
        file.truncate(40 * 1024**3)
    with pytest.raises(CheckpointError, match=rf"{name}.*it has 42949672960 bytes"):
        load(directory)


def test_a_named_folder_without_a_generation_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="use auto, none or a folder"):
        read_generation_config(tmp_path, str(tmp_path / "nowhere"))


def test_null_is_an_absent_field(checkpoint: Callable[..., Path]) -> None:
    fields = dict.fromkeys(("temperature", "eos_token_id", "do_sample", "max_new_tokens"))
    directory = checkpoint("byte_level", generation_config=fields, tokenizer_config={"eos_token": None})
    assert json.loads((directory / "generation_config.json").read_text())["temperature"] is None
    load(directory)
    assert read_generation_config(directory).defaults.temperature == 1.0


def test_fields_that_change_answers_and_are_not_applied_are_found(tmp_path: Path) -> None:
    file = tmp_path / "generation_config.json"
    assert ignored_fields(tmp_path) == []
    plain = {"temperature": 0.7, "num_beams": 1, "min_length": 0, "stop_strings": None, "bad_words_ids": []}
    file.write_text(json.dumps(plain | {"suppress_tokens": [5], "no_repeat_ngram_size": 3, "typical_p": 0.9}))
    assert ignored_fields(tmp_path) == ["suppress_tokens", "no_repeat_ngram_size", "typical_p"]
    assert ignored_fields(tmp_path, "none") == []
    assert ignored_fields(tmp_path, str(tmp_path)) == ignored_fields(tmp_path)
