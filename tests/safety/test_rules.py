"""The operator's rules: linear in time, and refused at the start where they cannot be used."""

from __future__ import annotations

import pytest

from kvarn.safety.errors import SafetyError
from kvarn.safety.guard_model import read_verdict
from kvarn.safety.rules import RuleList


def test_a_rule_matches_anywhere_in_any_script() -> None:
    rules = RuleList([r"(?i)project\s+borealis", "hemlig åäö"])
    assert rules and rules.matches("about Project  BOREALIS.") and rules.matches("en hemlig åäö sak")
    assert not rules.matches("about another project")
    assert not RuleList([])


def test_no_rule_and_no_text_take_more_than_linear_time() -> None:
    """Python's own engine would never end."""
    rules = RuleList([r"(a+)+$", r"(x|xx)*y", r"(.*.*.*)*z"])
    assert not rules.matches("a" * 200_000 + "x" * 200_000 + "!")


@pytest.mark.parametrize("rule", ["(", r"(a)\1", "(?=look)", "((a{1,1000}){1,1000})"])
def test_what_is_no_regular_expression_is_named(rule: str) -> None:
    with pytest.raises(SafetyError, match=r"safety\.rules\[1\]"):
        RuleList(["fine", rule])


@pytest.mark.parametrize(
    ("answer", "flagged"),
    [
        ("safe", ()),
        (" Safe.\n", ()),
        ("unsafe\nviolence, hate", ("hate", "violence")),
        ("Unsafe\nS1,S10", ("hate", "violence")),
        ("**unsafe**\n- self-harm/intent", ("self-harm/intent",)),
        ("unsafe", ("unspecified",)),
        ("unsafe\nS6", ("unspecified",)),
        ("unsafely", None),
        ("I cannot help with that", None),
        ("", None),
    ],
)
def test_the_answer_of_a_guard_model_is_read(answer: str, flagged: tuple[str, ...] | None) -> None:
    verdict = read_verdict(answer, 0.5)
    assert (None if verdict is None else verdict.flagged) == flagged
