"""Grammars in llguidance's form: from each kind of text, joined, and checked."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper, regex_to_lark
from llguidance.gbnf_to_lark import any_to_lark

from kvarn.grammar.errors import GrammarError
from kvarn.grammar.json_schema import enforceable

MAX_GRAMMAR_BYTES = 256 * 1024
"""Largest grammar or schema in a request: built in about a second."""
MAX_CHOICES = 4096
_MAX_MESSAGE = 400
_TOKEN_ID = re.compile(r"<\[\^?[\d\s,-]+\]>")

JSON_OPTIONS = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "lenient": False,
    "coerce_one_of": False,
    "whitespace_pattern": None,
    "json_allowed_escapes": 'nrbtf\\"',
    "json_allow_general_unicode_escapes": False,
}
"""JSON is written on one line, as Python's `json.dumps` writes it: models know that form, its white space cannot run
away, and most of what is between values is forced. Each string is written in one way only, so that no name is written
past `properties` or twice. Whatever cannot be enforced is an error."""


def limits() -> LLParserLimits:
    """Limits of building a grammar and each mask, in steps of work, so that they are the same on each machine.

    A step waits for the masks of all its rows: with these bounds the most costly known takes 0.04 s. Grammars of use
    stay far below them. llguidance counts not all it does: time and memory are bounded by `kvarn.sandbox`.
    """
    return LLParserLimits(step_max_items=10_000, max_lexer_states=50_000, verbose_errors=False)


def from_json_schema(schema: dict[str, Any] | bool) -> str:
    """JSON that a schema describes. Raises GrammarError; `check` finds out more."""
    try:
        return json.dumps({"grammars": [{"name": "json", "json_schema": with_options(enforceable(schema))}]})
    except RecursionError:
        raise GrammarError("the schema is nested too deeply") from None


def with_options(schema: dict[str, Any] | bool) -> dict[str, Any]:
    given = schema if isinstance(schema, dict) else ({} if schema else {"not": {}})
    return {**given, "x-guidance": JSON_OPTIONS}


def from_lark(lark: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": lark}]})


def from_regex(regex: str) -> str:
    """Text that a regular expression matches as a whole, with or without anchors. Classes such as `\\d` are ASCII's."""
    return from_lark(f"start: /{regex_to_lark(regex, 'dws')}/" if regex else 'start: ""')


def from_choices(choices: Sequence[str]) -> str:
    if not choices or len(choices) > MAX_CHOICES:
        raise GrammarError(f"there must be 1 to {MAX_CHOICES} choices, not {len(choices)}")
    if not all(choices):
        raise GrammarError("a choice may not be empty")
    return from_lark("start: CHOICE\nCHOICE: " + " | ".join(map(quoted, choices)))


def from_ebnf(text: str) -> str:
    """A grammar in Lark's syntax, or in GBNF, the form of EBNF that llama.cpp and vLLM take. Raises GrammarError."""
    try:
        if _GBNF_RULE.search(text):
            return from_lark(any_to_lark(_GBNF_ESCAPE.sub(_unescaped, text)))
        return from_lark(any_to_lark(_RULE_MARK.sub("", text)))
    except RecursionError:
        raise GrammarError("the grammar is nested too deeply") from None
    except Exception as error:  # the converter raises what comes
        raise GrammarError(f"the grammar cannot be read: {_short(str(error))}") from error


_GBNF_RULE = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)
_RULE_MARK = re.compile(r"^[ \t]*[?!]+(?=[a-z_]\w*[\s.\[:])", re.MULTILINE)
"""Lark's mark of a rule: it says how the tree of a parse is shown, and nothing of what is allowed."""
_GBNF_ESCAPE = re.compile(r"\\\\|\\x([0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\U([0-9a-fA-F]{8})")


def _unescaped(found: re.Match[str]) -> str:
    code = int(found[1] or found[2] or found[3] or "5c", 16)
    if found[0] == "\\\\" or code < 0x80:  # it may mean something by itself
        return found[0] if found[0] == "\\\\" else f"\\x{code:02x}"
    return chr(code)


def quoted(text: str) -> str:
    """A string as Lark writes it. Raises `GrammarError` where it is no Unicode text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise GrammarError("a string holds a lone surrogate, which is not valid Unicode") from None
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def literal(text: str, markers: Mapping[str, int]) -> str:
    """A string as Lark writes it, in which the names in `markers` stand for the tokens of these ids."""
    if not text:
        return ""
    names = "|".join(map(re.escape, sorted(markers, key=len, reverse=True)))
    pieces = re.split(f"({names})", text) if names else [text]
    return " ".join(f"<[{markers[piece]}]>" if piece in markers else quoted(piece) for piece in pieces if piece)


def joined(lark: str, **parts: str) -> str:
    grammars: list[dict[str, Any]] = [{"name": "joined", "lark_grammar": lark}]
    for name, part in parts.items():
        first, *others = json.loads(part)["grammars"] if part.startswith("{") else [{"lark_grammar": part}]
        grammars += [{**first, "name": name}, *others]
    return json.dumps({"grammars": grammars})


def check(grammar: str, max_bytes: int = MAX_GRAMMAR_BYTES) -> None:
    """Refuse what cannot be enforced: raises GrammarError. Takes milliseconds as a rule, and whatever time and
    memory a hostile one likes."""
    if len(grammar) > max_bytes:
        raise GrammarError(f"it is too large: at most {max_bytes} characters can be enforced")
    no_ids = _TOKEN_ID.sub("<[256]>", grammar)  # which tokens there are is not known here
    matcher = LLMatcher(bytes_as_tokens(), no_ids, log_level=0, limits=limits())
    problems = [matcher.get_error()] if matcher.is_error() else matcher.get_grammar_warnings()
    if problems:
        raise GrammarError(readable(problems[0]))
    for place in range(
        2
    ):  # finds out whether any text matches, and what is too complex behind what all texts begin with
        if place:
            matcher.consume_tokens(matcher.compute_ff_tokens())
        matcher.compute_bitmask()
        if matcher.is_error():
            problem = readable(matcher.get_error())
            raise GrammarError(problem if problem == _TOO_COMPLEX else "no text matches it")


class _Bytes:
    """A tokenizer whose tokens are the bytes, and an end token."""

    tokens = (*(bytes([byte]) for byte in range(256)), b"")
    eos_token_id = 256
    bos_token_id = None
    special_token_ids = (256,)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


@cache
def bytes_as_tokens() -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(_Bytes()))


_TOO_COMPLEX = "it is too complex"
_MEANINGS = (
    ("^oneOf constraints", "'oneOf' cannot be enforced where an answer may match several of its schemas"),
    ("^min/maxProperties", "'minProperties' and 'maxProperties' cannot be enforced beside properties of other schemas"),
    ("^Resource '(.*?)' is not present", r"'$ref' to '\1' cannot be enforced: other documents are not read"),
    ("^patternProperty regexes", "'patternProperties' cannot be enforced where a name may match several of them"),
    ("^Unknown format: (.*)", r"the 'format' \1 cannot be enforced"),
    ("[Tt]oo many items|[Cc]urrent row has|fuel|too many expressions|too many states|limits\\.", _TOO_COMPLEX),
)
"""Problems that llguidance tells in terms of its own options and workings."""


def readable(problem: str) -> str:
    unknown = re.fullmatch(r"Unimplemented keys: \[(.*)\]", problem)
    if unknown is not None:
        names = unknown[1].replace('"', "'")
        keyword = "keywords" if "," in names else "keyword"
        return f"the {keyword} {names} cannot be enforced"
    for pattern, meaning in _MEANINGS:
        if (meant := re.search(pattern, problem)) is not None:
            return meant.expand(meaning)
    found = re.search(r"regex parse error:.*?\nerror: ([^\n]*)", problem, re.DOTALL)
    return _short(found[1] if found is not None else re.split(r"\n *1 \||<non-verbose/>", problem)[0])


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _MAX_MESSAGE else text[:_MAX_MESSAGE] + "…"
