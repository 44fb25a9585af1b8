"""Masks against a brute-force oracle: all texts of small languages, written down without llguidance."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from kvarn.grammar.masks import GrammarMask
from kvarn.grammar.text import from_choices, from_ebnf, from_json_schema, from_regex
from profiles import effort
from small_vocabulary import END, MARK, allowed

MOST_STATES = effort(150, 3000)
"""Of one language that are looked at."""


def dumped(values: list[Any]) -> set[str]:
    return {json.dumps(value, ensure_ascii=False) for value in values}


def matching(pattern: str, alphabet: str, longest: int) -> set[str]:
    """All texts over an alphabet that a regular expression matches, by trying each."""
    texts = ("".join(each) for n in range(longest + 1) for each in itertools.product(alphabet, repeat=n))
    return {text for text in texts if re.fullmatch(pattern, text)}


def objects(optional: bool) -> list[dict[str, Any]]:
    names = ["name", "a", "nested"]
    values: list[list[Any]] = [["x", "xy"], [True, False, None], [{"n": 1}, {"n": 10}, {"n": 12}]]
    found: list[dict[str, Any]] = []
    for chosen in itertools.product(*[[*each, ...] if optional else each for each in values]):
        found.append({name: value for name, value in zip(names, chosen, strict=True) if value is not ...})
    return found


NESTED = {
    "type": "object",
    "properties": {"n": {"enum": [1, 10, 12]}},
    "required": ["n"],
    "additionalProperties": False,
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"enum": ["x", "xy"]}, "a": {"type": ["boolean", "null"]}, "nested": NESTED},
    "additionalProperties": False,
}
LANGUAGES: dict[str, tuple[str, set[str]]] = {
    "choices": (from_choices(["aa", "aab", "ba", 'a"b', "å"]), {"aa", "aab", "ba", 'a"b', "å"}),
    "regex": (from_regex("(a|ab)b{1,2}|ba?"), matching("(a|ab)b{1,2}|ba?", "ab", 4)),
    "anchored": (from_regex("^[ab]{2}$"), matching("[ab]{2}", "ab", 3)),
    "digits": (from_regex(r"-?1\d?"), matching("-?1[0-9]?", "-0123456789", 3)),
    "gbnf": (from_ebnf('root ::= x "b" | "12"\nx ::= "a" | "aa" "a"?'), {"12", "ab", "aab", "aaab"}),
    "lark": (from_ebnf('start: "a" (B | "1")?\nB: /b+/ & /.{1,2}/'), {"a", "ab", "abb", "a1"}),
    "required": (from_json_schema({**SCHEMA, "required": ["name", "a", "nested"]}), dumped(objects(False))),
    "optional": (from_json_schema(SCHEMA), dumped(objects(True))),
    "integers": (from_json_schema({"type": "integer", "minimum": -3, "maximum": 12}), {"-0", *map(str, range(-3, 13))}),
    "multiples": (
        from_json_schema({"type": "integer", "multipleOf": 5, "minimum": 1, "maximum": 20}),
        {"5", "10", "15", "20"},
    ),
    "arrays": (
        from_json_schema({"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2}),
        dumped([[a] for a in (True, False)] + [[a, b] for a in (True, False) for b in (True, False)]),
    ),
    "tuples": (
        from_json_schema({"type": "array", "prefixItems": [{"const": 1}, {"const": "a"}], "items": False}),
        dumped([[], [1], [1, "a"]]),
    ),
    "patterns": (from_json_schema({"type": "string", "pattern": "^(aa|ab)?$"}), dumped(["", "aa", "ab"])),
    "constants": (
        from_json_schema({"const": {"name": ["<|end|>", 1, None]}}),
        dumped([{"name": ["<|end|>", 1, None]}]),
    ),
    "references": (
        from_json_schema(
            {"$defs": {"x": {"enum": ["a", 1]}}, "type": "array", "items": {"$ref": "#/$defs/x"}, "maxItems": 1}
        ),
        dumped([[], ["a"], [1]]),
    ),
    "any of": (from_json_schema({"anyOf": [{"const": 12}, NESTED]}), dumped([12, {"n": 1}, {"n": 10}, {"n": 12}])),
    "all of": (from_json_schema({"allOf": [{"enum": ["a", "b", 1]}, {"type": "string"}]}), dumped(["a", "b"])),
}


@pytest.mark.parametrize("name", LANGUAGES)
def test_a_mask_holds_exactly_the_tokens_that_some_text_goes_on_with(mask_of, vocabulary, name):
    """From each state that can be reached token by token. Where the rest of a piece of text is certain, the mask holds
    the one token with which the tokenizer begins it, of those that the oracle allows."""
    grammar, texts = LANGUAGES[name]
    language = {text.encode() for text in texts}
    beginnings = {text[:end] for text in language for end in range(len(text) + 1)}
    tokens = {token: vocabulary.bytes_of(token) for token in range(vocabulary.vocab_size) if token not in (END, MARK)}
    states: list[tuple[list[int], bytes]] = [([], b"")]
    finished = set[bytes]()
    for outputs, text in states:
        right = {token for token, more in tokens.items() if more and text + more in beginnings}
        if text in language:
            right.add(END)
            finished.add(text)
        mask = mask_of(grammar)
        forced = mask.forced(0, outputs)
        found = allowed(mask.pack(0, outputs, [])[0])
        if forced:
            assert found == {forced[0]} <= right, (text, forced, right)
            certain = text + b"".join(tokens[token] for token in forced)
            assert all(each.startswith(certain) for each in language if each.startswith(text))
        else:
            assert found == right, (text, found ^ right)
        if len(states) < MOST_STATES:
            states += [([*outputs, token], text + tokens[token]) for token in sorted(found - {END})]
        assert mask.problem is None
    assert finished == language or len(states) >= MOST_STATES


@pytest.mark.parametrize("name", LANGUAGES)
def test_forced_tokens_are_the_same_one_by_one_and_together(mask_of, vocabulary, name):
    """So an answer is the same whether there was room to compute them together or not, and wherever it went on."""
    grammar, texts = LANGUAGES[name]
    for text in sorted(texts)[: effort(20, 200)]:
        together, alone = mask_of(grammar), mask_of(grammar)
        outputs: list[int] = []
        while True:
            forced = together.forced(0, outputs)
            for place, token in enumerate(forced):
                assert alone.forced(0, outputs + forced[:place])[0] == token
                assert allowed(alone.pack(0, outputs + forced[:place], [])[0]) == {token}
            fresh = mask_of(grammar)
            assert allowed(fresh.pack(0, outputs + forced, [])[0]) == allowed(together.pack(0, outputs + forced, [])[0])
            outputs += forced
            written = b"".join(map(vocabulary.bytes_of, outputs))
            choices = allowed(alone.pack(0, outputs, [])[0]) - {END}
            goes_on = [
                token for token in sorted(choices) if text.encode().startswith(written + vocabulary.bytes_of(token))
            ]
            if written == text.encode() or not goes_on:
                break
            outputs.append(goes_on[-1])


def test_proposals_get_the_masks_that_their_positions_have_alone(mask_of, vocabulary):
    grammar = LANGUAGES["optional"][0]
    text = b'{"name": "xy", "nested": {"n": 10}}'
    outputs = vocabulary.library.tokenize_bytes(text)
    for begin in range(len(outputs)):
        together = mask_of(grammar).pack(0, outputs[:begin], outputs[begin:])
        for place in range(begin, len(outputs) + 1):
            assert allowed(together[place - begin]) == allowed(mask_of(grammar).pack(0, outputs[:place], [])[0])


def test_behind_an_end_token_there_are_only_end_tokens(mask_of: Callable[..., GrammarMask]) -> None:
    """Where the request's `min_tokens` lets none of them end the answer."""
    mask = mask_of(LANGUAGES["choices"][0])
    written = list(b"ba")
    masks = mask.pack(0, [], [*written, END, END, 7])
    assert [allowed(masks[place]) for place in (2, 3, 4)] == [{END}] * 3
    assert allowed(mask_of(LANGUAGES["choices"][0]).pack(0, [*written, END, END], [])[0]) == {END}
    assert mask.problem is None


def test_what_is_left_of_a_long_forced_text_is_what_is_forced_there(mask_of: Callable[..., GrammarMask]) -> None:
    """A step takes a part of it; then the answer goes on, goes back, or ends with other tokens."""
    text = from_ebnf('start: ("a" "ba12b"~40 | "b") /[ab]/')
    mask, begun = mask_of(text), [ord("a")]
    assert mask.forced(0, []) == []
    forced = mask.forced(0, begun)
    assert len(forced) > 40
    for cut in (1, 7, len(forced) - 1):
        assert mask.forced(0, begun + forced[:cut]) == forced[cut:]
        assert mask_of(text).forced(0, begun + forced[:cut]) == forced[cut:]
    assert mask.forced(0, begun + forced) == []
    assert mask.forced(0, begun + forced[:3]) == forced[3:]
    assert mask_of(text).forced(0, [ord("b")]) == []
