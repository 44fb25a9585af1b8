"""Each word in a public name is ordinary, or explained in the glossary."""

from __future__ import annotations

import runpy
from pathlib import Path

CHECKS = runpy.run_path(str(Path(__file__).parents[2] / "docs/checks.py"))


def test_a_word_that_nobody_explains_is_named_with_what_to_do():
    (problem,) = CHECKS["unknown_words"]([("a.py", "BlockWhatsit")], {"block"})
    assert problem.startswith("a.py: 'whatsit' in 'BlockWhatsit' is not known")
    assert "docs/reference/glossary.md" in problem and "docs/tools/words.txt" in problem


def test_forms_of_a_known_word_are_known():
    names = [("a.py", name) for name in ("cached_blocks", "BlockCaching", "HTTPServer", "sha256_of")]
    assert CHECKS["unknown_words"](names, {"block", "cach", "http", "serve", "sha", "of"}) == []


def test_terms_of_the_glossary_are_known():
    assert {"prefill", "preemption", "lease"} <= CHECKS["known_words"]()
