"""Which format a model's reasoning has, and where in it an answer begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from fake_replica import write_checkpoint
from kvarn.text.reasoning.formats import (
    DEEPSEEK_R1,
    GPT_OSS,
    GRANITE,
    MISTRAL,
    QWEN3,
    ReasoningFormat,
    find_reasoning_format,
)
from kvarn.text.reasoning.splitter import ReasoningPhase
from kvarn.text.tokenizer import Tokenizer

BEFORE, INSIDE, AFTER = ReasoningPhase


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ content.split('</think>')[-1] }}", QWEN3),
        ("<|start|>assistant<|channel|>analysis<|message|>", GPT_OSS),
        ("[THINK]{{ thinking }}[/THINK]", MISTRAL),
        ("… with 'Here is my thought process:' … and with 'Here is my response:' …", GRANITE),
        ("{{ messages }}", None),
    ],
)
def test_the_format_is_read_from_the_template(template: str, expected: ReasoningFormat | None) -> None:
    assert find_reasoning_format("auto", template) is expected


def test_the_configuration_has_the_last_word() -> None:
    assert find_reasoning_format("none", "</think>") is None
    assert find_reasoning_format("deepseek_r1", "</think>") is DEEPSEEK_R1


@pytest.mark.parametrize(
    ("kind", "tail", "begun", "expected"),
    [
        (QWEN3, "Hi<|im_end|>\n<|im_start|>assistant\n", "", BEFORE),
        (QWEN3, "<|im_start|>assistant\n<think>\n", "", INSIDE),
        (QWEN3, "<|im_start|>assistant\n<think>\n\n</think>\n\n", "", AFTER),
        (QWEN3, "say <think><|im_end|>\n<|im_start|>assistant\n", "", BEFORE),
        (QWEN3, "<|im_start|>assistant\nHel", "Hel", AFTER),
        (QWEN3, "<|im_start|>assistant\n<think>It is", "<think>It is", INSIDE),
        (QWEN3, "<|im_start|>assistant\n<think>a</think>Hel", "<think>a</think>Hel", AFTER),
        (QWEN3, '<think>\n\n</think>\n\n<tool_call>\n{"name":', '<tool_call>\n{"name":', AFTER),
        (DEEPSEEK_R1, "<｜Assistant｜>", "", INSIDE),
        (DEEPSEEK_R1, "<｜Assistant｜></think>", "", AFTER),
        (GPT_OSS, "<|end|><|start|>assistant", "", BEFORE),
        (GPT_OSS, "<|start|>assistant<|channel|>final<|message|>Hel", "Hel", AFTER),
        (GPT_OSS, "<|start|>assistant<|channel|>final<|message|>", "", AFTER),
        (GPT_OSS, "<|start|>assistant<|channel|>analysis<|message|>", "", INSIDE),
    ],
)
def test_where_an_answer_begins(kind: ReasoningFormat, tail: str, begun: str, expected: ReasoningPhase) -> None:
    assert kind.phase_after(tail, begun) is expected


def test_the_same_of_token_ids(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write_checkpoint(tmp_path))  # each byte a token
    for text, expected in (("hi <think>\n", INSIDE), ("<think>\n\n</think>\n\n", AFTER), ("hi", BEFORE)):
        prompt = tokenizer.encode(f"<|user|>{'long ' * 50}<|assistant|>{text}", add_special_tokens=False)
        assert QWEN3.phase_after_prompt(prompt, tokenizer) is expected
