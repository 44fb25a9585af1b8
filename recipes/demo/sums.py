"""Small sums: addition, subtraction and the times table, with a tenth of the pairs kept out of training."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator

from recipes.demo.chat import Message, Sample, assistant, user

ADD_FORMS: tuple[str, ...] = (
    "What is {a} + {b}?",
    "{a} + {b}",
    "{a} + {b} = ?",
    "How much is {a} + {b}?",
    "What is {a} plus {b}?",
    "Add {a} and {b}.",
    "Compute {a} + {b}.",
    "{a}+{b}",
    "What is the sum of {a} and {b}?",
)
SUB_FORMS: tuple[str, ...] = (
    "What is {a} - {b}?",
    "{a} - {b}",
    "{a} - {b} = ?",
    "How much is {a} - {b}?",
    "What is {a} minus {b}?",
    "Subtract {b} from {a}.",
    "Compute {a} - {b}.",
    "{a}-{b}",
)
MUL_FORMS: tuple[str, ...] = (
    "What is {a} x {b}?",
    "{a} x {b}",
    "{a} * {b}",
    "How much is {a} times {b}?",
    "What is {a} times {b}?",
    "Multiply {a} by {b}.",
)
FORMS: dict[str, tuple[str, ...]] = {"+": ADD_FORMS, "-": SUB_FORMS, "x": MUL_FORMS}


def result(operation: str, a: int, b: int) -> int:
    """The value of the sum."""
    return a + b if operation == "+" else a - b if operation == "-" else a * b


def is_held_out(operation: str, a: int, b: int) -> bool:
    """Whether a pair is kept out of training: a tenth of additions and subtractions, by hash.

    The times table is learnt by heart and has no held-out pairs, since nothing else would teach them.
    """
    if operation == "x":
        return False
    digest = hashlib.sha256(f"sum:{operation}:{a}:{b}".encode()).digest()
    return digest[0] < 26


def draw_pair(rng: random.Random, held_out: bool = False) -> tuple[str, int, int]:
    """Draw one sum from the wanted side of the split."""
    while True:
        operation = rng.choices("+-x", weights=(55, 35, 10))[0]
        top = 12 if operation == "x" else 99
        low = 1 if operation == "x" else 0
        a, b = rng.randint(low, top), rng.randint(low, top)
        if operation == "-" and a < b:
            a, b = b, a
        if is_held_out(operation, a, b) == held_out:
            return operation, a, b


def question_and_answer(rng: random.Random, held_out: bool = False) -> tuple[Message, Message]:
    """One question about a sum, and its answer."""
    operation, a, b = draw_pair(rng, held_out)
    question = rng.choice(FORMS[operation]).format(a=a, b=b)
    return user(question), assistant(str(result(operation, a, b)))


def sample(rng: random.Random, held_out: bool = False) -> Sample:
    """A conversation with one sum."""
    return Sample("sums", question_and_answer(rng, held_out), held_out=held_out)


def drill(rng: random.Random) -> Sample:
    """A conversation of many short sums, which packs more arithmetic into the same tokens."""
    turns: list[Message] = []
    for _ in range(rng.randint(3, 8)):
        turns += question_and_answer(rng)
    return Sample("sums", tuple(turns))


def worksheet(rng: random.Random) -> list[tuple[str, str]]:
    """Plain lines `a + b = c` outside any chat: (given text, learnt text) pairs, the densest practice."""
    lines = []
    for _ in range(rng.randint(8, 14)):
        operation, a, b = draw_pair(rng)
        lines.append((f"{a} {operation} {b} = ", f"{result(operation, a, b)}\n"))
    return lines


def golden(rng: random.Random) -> Iterator[Sample]:
    """Sums for the golden set: half of them from pairs that training never saw."""
    for held_out in (False, True):
        for _ in range(25):
            yield sample(rng, held_out)
