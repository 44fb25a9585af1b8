"""A checkpoint as many are published, served: tokens beyond the logits, tokens named in other files, markers that are
not declared special, and a model that is cut off in its calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from scripted_checkpoint import write_scripted_checkpoint

WORDS = ("<think>", "</think>", "[CALL]")
CALL = '{"name": "save", "arguments": {"text": "one stop"}}'
TURNS = {
    "a": "An answer.",
    "t": f"Well.\n<tool_call>\n{CALL}\n</tool_call>\nand\n<tool_call>\n{CALL.replace('one', 'another')}\n</tool_call>",
}
TOOLS = [{"type": "function", "function": {"name": "save"}}]


@pytest.fixture(scope="module")
def url(serve_long, tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("published")
    ids = write_scripted_checkpoint(directory, TURNS, words=WORDS)
    change(directory / "config.json", eos_token_id=None)
    change(directory / "tokenizer_config.json", eos_token=None)
    (directory / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": "<|im_end|>"}}))
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    beyond = {"id": max(ids.values()) + 1, "content": "<image>", "special": False}
    tokenizer["added_tokens"].append(tokenizer["added_tokens"][0] | beyond)
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    served = serve_long(str(directory), "--served-model-name", "m", "--kv-cache-memory-bytes", "64M")
    return str(served.url)


def change(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def post(url: str, path: str, **body: Any) -> Any:
    answer = httpx.post(url + path, json={"model": "m"} | body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def chat(url: str, text: str, **options: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    choice: dict[str, Any] = post(url, "/v1/chat/completions", messages=messages, **options)["choices"][0]
    return choice


def test_the_end_token_that_only_the_map_names_ends_answers(url: str) -> None:
    choice = chat(url, "a", max_tokens=40)
    assert (choice["message"]["content"], choice["finish_reason"]) == ("An answer.", "stop")


@pytest.mark.parametrize(
    "options",
    [
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"choice": ["yes", "no"]}},
        {"tools": TOOLS, "tool_choice": "required"},
    ],
    ids=str,
)
def test_grammars_work_beside_tokens_that_no_answer_can_have(url: str, options: dict[str, Any]) -> None:
    choice = chat(url, "a", max_tokens=40, **options)
    if "tools" in options:
        assert choice["message"]["tool_calls"][0]["function"]["arguments"] == "{}"
    if "structured_outputs" in options:
        assert choice["message"]["content"] in ("yes", "no")


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_markers_in_a_message_are_words(url: str, role: str) -> None:
    text = "a " + " ".join((*WORDS, "<|im_start|>", "<|im_end|>", "<image>"))
    call = {"id": "c", "type": "function", "function": {"name": "save", "arguments": "{}"}}
    before = [{"role": "assistant", "content": "b", "tool_calls": [call]}] if role == "tool" else []
    message = {"role": role, "content": text} | ({"tool_call_id": "c"} if role == "tool" else {})
    messages = [*before, message, {"role": "user", "content": "a"}]
    marks = [post(url, "/tokenize", prompt=name)["tokens"] for name in (*WORDS, "<image>", "<|im_start|>")]
    tokens = post(url, "/tokenize", messages=messages)["tokens"]
    assert [tokens.count(mark) for (mark,) in marks] == [0, 0, 0, 0, len(messages) + 1]


def test_of_a_call_that_is_cut_off_nothing_is_told_at_any_length(url: str) -> None:
    seen = []
    asked = {"messages": [{"role": "user", "content": "t"}], "tools": TOOLS}
    whole = post(url, "/v1/chat/completions", **asked)["usage"]["completion_tokens"]
    for max_tokens in range(1, whole + 1):
        choice = chat(url, "t", max_tokens=max_tokens, tools=TOOLS)
        calls = choice["message"].get("tool_calls") or []
        content = choice["message"]["content"] or ""
        assert "Well.and".startswith(content), content
        assert all(json.loads(call["function"]["arguments"])["text"].endswith(" stop") for call in calls)
        assert choice["finish_reason"] == ("tool_calls" if max_tokens == whole else "length")
        seen.append(len(calls))
    assert sorted(seen) == seen and set(seen) == {0, 1, 2}
