"""Tokens and templates that other files than tokenizer.json tell of, as transformers reads them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers

from kvarn.grammar.errors import GrammarError
from kvarn.grammar.vocabulary import Vocabulary
from kvarn.text.added_tokens import read_tokenizer_text
from kvarn.text.chat_template import ChatTemplate
from kvarn.text.errors import CheckpointError, TokenizerError
from kvarn.text.tokenizer import Tokenizer

TEXT = "a<|end|> b <think> c<|new|>d two words <|start|><extra>"
THINK = {"content": "<think>", "special": True, "normalized": False}
FILES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "tokens named": {
        "tokenizer_config": {"bos_token": "<|start|>", "eos_token": {"__type": "AddedToken", "content": "<|end|>"}}
    },
    "tokens named in the map": {"special_tokens_map": {"bos_token": {"content": "<|start|>"}, "eos_token": "<|end|>"}},
    "the map goes before": {
        "tokenizer_config": {"eos_token": "<|start|>"},
        "special_tokens_map": {"eos_token": "<|end|>"},
    },
    "the map is not read beside a list": {
        "tokenizer_config": {"eos_token": "<|end|>", "added_tokens_decoder": {"387": THINK}},
        "special_tokens_map": {"eos_token": "<|start|>", "bos_token": "<|start|>"},
    },
    "a token is new": {"tokenizer_config": {"added_tokens_decoder": {"389": {"content": "<|new|>", "special": True}}}},
    "a token is special": {"tokenizer_config": {"added_tokens_decoder": {"387": THINK}}},
    "as older versions": {
        "added_tokens": {"<|new|>": 389, "<think>": 387, "<extra>": 390},
        "special_tokens_map": {"eos_token": "<|end|>", "extra_special_tokens": ["<extra>"]},
    },
    "more tokens": {
        "tokenizer_config": {
            "extra_special_tokens": ["the"],
            "eos_token": "<|end|>",
            "mask_token": {"__type": "AddedToken", "content": "in", "lstrip": True},
        }
    },
}


def written(directory: Path, files: dict[str, Any]) -> Path:
    for name, content in {"tokenizer_config": {}, **files}.items():
        if name == "tokenizer_config":  # else transformers looks for the class of a model
            content = {"tokenizer_class": "PreTrainedTokenizerFast", **content}
        (directory / f"{name}.json").write_text(json.dumps(content))
    return directory


@pytest.fixture
def directory(tmp_path: Path, load: Callable[..., Tokenizer]) -> Path:
    data = json.loads(load("byte_level")._library.to_str())
    names = ["<think>", "filler"]
    more = [
        {"id": 387 + place, "content": name, "special": False}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for place, name in enumerate(names)
    ]
    data["added_tokens"] += more
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    return tmp_path


@pytest.mark.parametrize("name", FILES)
def test_added_tokens_are_those_of_transformers(directory: Path, name: str) -> None:
    written(directory, FILES[name])
    oracle = transformers.AutoTokenizer.from_pretrained(directory)
    tokenizer = Tokenizer.load(directory)
    ids = tokenizer.encode(TEXT, add_special_tokens=False)
    assert ids == oracle.encode(TEXT, add_special_tokens=False)
    for skip in (True, False):
        assert tokenizer.decode(ids, skip) == oracle.decode(ids, skip_special_tokens=skip)
    assert list(tokenizer.eos_token_ids) == ([] if oracle.eos_token_id is None else [oracle.eos_token_id])
    named = {"bos_token": oracle.bos_token, "eos_token": oracle.eos_token}
    special = ChatTemplate.load(directory)._special_tokens
    assert {key: special.get(key) for key in named} == named


def test_a_whole_file_is_taken_as_it_is(directory: Path) -> None:
    text = (directory / "tokenizer.json").read_text()
    assert read_tokenizer_text(written(directory, FILES["tokens named"])) == text


@pytest.mark.parametrize(
    "files",
    [
        {"added_tokens": {"<|new|>": "387"}},
        {"tokenizer_config": {"added_tokens_decoder": {"x": THINK}}},
        {"tokenizer_config": {"added_tokens_decoder": {"1": {"special": True}}}},
        {"special_tokens_map": {"eos_token": 5}},
        {"special_tokens_map": {"additional_special_tokens": "x"}},
    ],
)
def test_broken_files_are_refused(directory: Path, files: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="/".join(files)):
        Tokenizer.load(written(directory, files))


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize(
    "text", [f'{{"added_tokens":{DEEP}}}', f'{{"model":{DEEP}}}', DEEP, "[]", "7", '{"added_tokens":5}']
)
def test_a_tokenizer_that_nests_or_is_no_object_is_refused(directory: Path, text: str, named: bool) -> None:
    written(directory, FILES["a token is new" if named else "nothing"])
    (directory / "tokenizer.json").write_text(text)
    with pytest.raises(TokenizerError, match="Cannot read"):
        Tokenizer.load(directory)
    with pytest.raises(GrammarError, match="cannot read"):
        Vocabulary(text, 300, [1])


@pytest.mark.parametrize("tools", [False, True])
async def test_templates_in_files_replace_those_in_the_configuration(directory: Path, tools: bool) -> None:
    both = [{"name": "default", "template": "1"}, {"name": "tool_use", "template": "2"}]
    written(directory, {"tokenizer_config": {"chat_template": both}})
    given = [{"type": "function", "function": {"name": "f", "parameters": {}}}] if tools else None
    for write in (lambda: None, lambda: (directory / "chat_template.jinja").write_text("3")):
        write()
        oracle = transformers.AutoTokenizer.from_pretrained(directory)
        template = ChatTemplate.load(directory)
        assert await template.render(template.request([], tools=given)) == oracle.get_chat_template(tools=given)
        await template.close()
