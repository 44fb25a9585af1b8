"""What the demo model knows by heart: facts and long answers, each with the many ways to ask for it.

They are written in `texts/*.toml`. There `answer` is what is said; `subjects` are noun phrases that are put
into every definition form; `questions` are whole questions with the same answer; `why`, where there is one, answers
"why does it matter?", alone or as a follow-up.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TEXTS = Path(__file__).with_name("texts")

DEFINITION_FORMS: tuple[str, ...] = (
    "What is {s}?",
    "What's {s}?",
    "What does {s} mean?",
    "Explain {s}.",
    "Define {s}.",
    "Can you explain {s}?",
    "Tell me about {s}.",
    "Describe {s} briefly.",
    "How would you define {s}?",
    "I keep hearing about {s}. What is it?",
    "Please explain {s} in a sentence or two.",
    "What is meant by {s}?",
)

WHY_FORMS: tuple[str, ...] = (
    "Why does {s} matter?",
    "Why is {s} important?",
    "Why should I care about {s}?",
)


@dataclass(frozen=True)
class Fact:
    """One thing the demo model knows."""

    name: str
    answer: str
    subjects: tuple[str, ...] = ()
    questions: tuple[str, ...] = ()
    why: str | None = None

    def phrasings(self) -> list[str]:
        """Every wording of the question that this fact answers, in a stable order."""
        forms = [form.format(s=subject) for subject in self.subjects for form in DEFINITION_FORMS]
        return [*self.questions, *forms]

    def why_phrasings(self) -> list[str]:
        """Every wording of "why does it matter?" that names the subject."""
        if self.why is None:
            return []
        return [form.format(s=subject) for subject in self.subjects for form in WHY_FORMS]


def read_facts(file: str) -> tuple[Fact, ...]:
    """The facts of one file, in its order."""
    tables: dict[str, dict[str, Any]] = tomllib.loads((TEXTS / file).read_text(encoding="utf-8"))
    return tuple(
        Fact(
            name=name,
            answer=table["answer"],
            subjects=tuple(table.get("subjects", ())),
            questions=tuple(table.get("questions", ())),
            why=table.get("why"),
        )
        for name, table in tables.items()
    )


SERVING_FACTS = read_facts("serving.toml")
KVARN_FACTS = read_facts("kvarn.toml")
ESSAYS = read_facts("essays.toml")
FACTS = (*SERVING_FACTS, *KVARN_FACTS)
