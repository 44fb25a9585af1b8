"""What a fact is: one answer, and the many ways to ask for it."""

from __future__ import annotations

from dataclasses import dataclass

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
    """One thing the demo model knows.

    `subjects` are noun phrases put into every definition form; `questions` are whole questions with the same answer;
    `why`, when present, answers "why does it matter?", alone or as a follow-up.
    """

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
