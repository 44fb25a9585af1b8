"""Lark grammars without recursion as regular expressions."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kvarn.grammar.errors import GrammarError
from kvarn.grammar.lark_regex import regex_of_lark
from kvarn.responses.tools import chat_tool, offered_tools

EDIT = r"""
// The shape of an edit that an agent writes.
start: head (add | drop)+ tail
head: "*** Open" LF
tail: "*** Close" LF?
add: "+ " path LF line~1..3 -> added
    | "++" LF
drop: "- " path LF
path: /[^\n]+/
line: "|" /.*/ LF
LETTERS: "a".."c"

%import common.LF
"""


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("*** Open\n+ a/b.py\n|x = 1\n|\n*** Close", True),
        ("*** Open\n- a\n- b\n++\n*** Close\n", True),
        ("*** Open\n*** Close", False),
        ("*** Open\n+ a\n*** Close", False),
        ("*** Open\n+ a\n|1\n|2\n|3\n|4\n*** Close", False),
        ("Sure! *** Open\n- a\n*** Close", False),
    ],
)
def test_an_expression_matches_what_the_grammar_does(text: str, matches: bool) -> None:
    assert (re.fullmatch(regex_of_lark(EDIT), text) is not None) is matches


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        ('start: [SIGN] INT ("." INT)?\nSIGN: "+" | "-"\n%import common (INT, WS)', "-12.5"),
        ('?start: "a"i ("b" | "c")* /d/i', "AbcbD"),
        ('start: X~2 "\\"" "\\u00e5"\nX.2: "x".."z"', 'xz"å'),
        ("start: /a\\/b/", "a/b"),
    ],
)
def test_what_grammars_are_written_with(grammar: str, text: str) -> None:
    assert re.fullmatch(regex_of_lark(grammar), text)


@pytest.mark.parametrize(
    ("grammar", "why"),
    [
        ('start: "(" start ")" | "x"', "holds itself"),
        ("start: other", "no rule 'other'"),
        ('word: "x"', "no rule 'start'"),
        ('start: "a" "b"\n%ignore " "', "%ignore"),
        ('start: ("a"', "has no end"),
        ('start: "a")', "too much"),
        ("start: %", "not understood|cannot be kept"),
        ("start: common\n%import common.NOTHING", "NOTHING"),
        (
            "\n".join(["start: a9", 'a0: "x"', *(f"a{n}: a{n - 1} a{n - 1} a{n - 1} a{n - 1}" for n in range(1, 10))]),
            "large",
        ),
    ],
)
def test_what_no_expression_can_say_is_refused(grammar: str, why: str) -> None:
    with pytest.raises(GrammarError, match=why):
        regex_of_lark(grammar)


@pytest.mark.parametrize(
    ("grammar", "named"),
    [
        ("start: " + "(" * 3000 + '"a"' + ")" * 3000, "nested too deeply"),
        ("start: a0\n" + "\n".join(f"a{n}: a{n + 1}" for n in range(1200)) + '\na1200: "x"', "nested too deeply"),
        ("start: " + '"a" ' * 1_000_000, "too large"),
        ('start: "a"' + "?" * 15_900, "too large"),
        ("start: " + "?" * 15_900, "out of place"),
        ('start: "a"~' + "9" * 5000, "not understood"),
        ("start: a0\n" + "\n".join(f"a{n}: a{n + 1} a{n + 1}" for n in range(60)) + '\na60: "x"', "too large"),
    ],
)
def test_a_hostile_grammar_is_refused_at_once(grammar: str, named: str) -> None:
    with pytest.raises(GrammarError, match=named):
        regex_of_lark(grammar)


def test_the_grammars_of_all_tools_are_bounded_together() -> None:
    form = {"type": "grammar", "syntax": "lark", "definition": 'start: "a"' + " " * 9000}
    tools: list[dict[str, Any]] = [{"type": "custom", "name": name, "format": form} for name in "fg"]
    warnings = [chat_tool(each)[1] for each in offered_tools(tools)]
    assert warnings[0] is None and "longer than 16000 characters" in str(warnings[1])
