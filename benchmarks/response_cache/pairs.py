"""Pairs of questions that mean the same, or nearly but not: made from templates, so that the label is known.

A question has a topic, a form of words for it, and slots (names, numbers, units, dates). Two with the same topic and
the same values in all slots mean the same, however they are put. Changes that make another question: another number,
name, unit or date; two names swapped; a `not`; the opposite of a word.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

_NAMES = (
    "Oslo Rome Lima Cairo Quito Berlin Madrid Nairobi Helsinki Toronto Sydney Kyoto Lagos Warsaw Dublin Vienna Prague"
    " Athens Lisbon Zurich Hanoi Manila Bogota Denver Boston"
)
_PRODUCTS = "Atlas Borealis Cobalt Dynamo Ember Falcon Granite Horizon Indigo Juniper Kestrel Lumen"
_LOWER = "oslo rome lima cairo quito berlin madrid nairobi helsinki toronto"
_MONTHS = "January February March April May June July August September October November December"
NAMES, PRODUCTS, LOWER, MONTHS = _NAMES.split(), _PRODUCTS.split(), _LOWER.split(), _MONTHS.split()
UNITS = ("kilometers", "miles"), ("hours", "minutes"), ("kg", "pounds"), ("euros", "dollars")
OPPOSITES = (
    ("enable", "disable"),
    ("increase", "decrease"),
    ("install", "remove"),
    ("import", "export"),
    ("start", "stop"),
    ("upload", "download"),
)
THINGS = (
    "two-factor login",
    "the backup job",
    "email alerts",
    "the audit log",
    "dark mode",
    "weekly reports",
    "the invoice archive",
    "guest access",
    "the search index",
    "automatic updates",
    "the payment module",
    "single sign-on",
)


@dataclass(frozen=True, slots=True)
class Question:
    text: str
    meaning: str  # equal for questions that mean the same
    change: str  # of another question into this one; `paraphrase` changes no meaning
    of: int | None = None  # place of that other question; None of a new one


@dataclass(frozen=True, slots=True)
class _Template:
    topic: str
    forms: Sequence[str]
    slots: Sequence[str]


_TEMPLATES = (
    _Template(
        "distance",
        (
            "How far is it from {a} to {b}?",
            "What is the distance from {a} to {b}?",
            "Tell me the distance from {a} to {b}.",
            "Please tell me how far it is from {a} to {b}.",
            "I would like to know the distance from {a} to {b}.",
        ),
        ("a", "b"),
    ),
    _Template(
        "weather",
        (
            "What is the weather like in {a} in {month}?",
            "How is the weather in {a} in {month}?",
            "Tell me about the weather in {a} in {month}.",
            "Could you describe the weather in {a} in {month}?",
        ),
        ("a", "month"),
    ),
    _Template(
        "lower-case town",
        (
            "what is there to see in {low}?",
            "which sights does {low} have?",
            "tell me what there is to see in {low}",
            "what are the sights of {low}?",
        ),
        ("low",),
    ),
    _Template(
        "price",
        (
            "How much does {product} cost for {number} users?",
            "What is the price of {product} for {number} users?",
            "Tell me the price of {product} for {number} users.",
            "What does {product} cost for {number} users?",
        ),
        ("product", "number"),
    ),
    _Template(
        "conversion",
        (
            "How many {unit} are {number} {other}?",
            "Convert {number} {other} to {unit}.",
            "What is {number} {other} expressed as {unit}?",
        ),
        ("unit", "number"),
    ),
    _Template(
        "setting",
        (
            "How do I {verb} {thing}?",
            "How can I {verb} {thing}?",
            "What must I do to {verb} {thing}?",
            "Show me how to {verb} {thing}.",
            "Please explain how to {verb} {thing}.",
        ),
        ("verb", "thing"),
    ),
    _Template(
        "allowed",
        (
            "May members {nothing}see {thing} on {product}?",
            "Are members allowed to {nothing}see {thing} on {product}?",
            "Is it permitted for members to {nothing}see {thing} on {product}?",
        ),
        ("nothing", "thing", "product"),
    ),
)


def questions(count: int, seed: int) -> list[Question]:
    """So many questions, each a paraphrase of an earlier one, or a change of one, or new."""
    draw, made = random.Random(seed), list[tuple[_Template, dict[str, str], int]]()
    found: list[Question] = []
    while len(found) < count:
        kind = draw.random()
        if not made or kind < 0.15:
            template = draw.choice(_TEMPLATES)
            values, change, of = _values(template, draw), "new", None
            made.append((template, values, len(found)))
        else:
            template, values, of = draw.choice(made[-400:])
            change = "paraphrase"
            if kind > 0.60:
                values, change = _changed(template, values, draw)
        text = draw.choice(template.forms).format(**values)
        meaning = f"{template.topic} {sorted(values.items())}"
        found.append(Question(_styled(text, draw), meaning, change, of))
    return found


def _values(template: _Template, draw: random.Random) -> dict[str, str]:
    pair = draw.choice(UNITS)
    a, b = draw.sample(NAMES, 2)
    every = {
        "a": a,
        "b": b,
        "low": draw.choice(LOWER),
        "month": draw.choice(MONTHS),
        "product": draw.choice(PRODUCTS),
        "number": str(draw.randrange(2, 2000)),
        "unit": pair[0],
        "other": pair[1],
        "verb": draw.choice(draw.choice(OPPOSITES)),
        "thing": draw.choice(THINGS),
        "nothing": "",
    }
    used = "".join(template.forms)
    return {name: value for name, value in every.items() if f"{{{name}}}" in used}


def _changed(template: _Template, values: dict[str, str], draw: random.Random) -> tuple[dict[str, str], str]:
    """The values of a question that means something else, and what was changed."""
    slot = draw.choice(template.slots)
    if slot in ("a", "b") and "b" in values and draw.random() < 0.5:
        return {**values, "a": values["b"], "b": values["a"]}, "order"
    if slot == "unit":
        return {**values, "unit": values["other"], "other": values["unit"]}, "unit"
    if slot == "nothing":
        return {**values, "nothing": "" if values["nothing"] else "not "}, "negation"
    if slot == "verb":
        others = {word: other for pair in OPPOSITES for word, other in (pair, pair[::-1])}
        return {**values, "verb": others[values["verb"]]}, "opposite"
    pools: dict[str, Sequence[str]] = {"a": NAMES, "b": NAMES, "low": LOWER, "month": MONTHS, "product": PRODUCTS}
    if slot == "number":
        number = int(values["number"])
        return {**values, "number": str(draw.choice([number + 1, number * 10, number + 100]))}, "number"
    pool = [each for each in pools.get(slot, THINGS) if each not in values.values()]
    kind = {"low": "lower-case name", "month": "date", "thing": "thing"}.get(slot, "name")
    return {**values, slot: draw.choice(pool)}, kind


def _styled(text: str, draw: random.Random) -> str:
    """The same question as somebody else types it."""
    style = draw.random()
    if style < 0.15:
        return f"{text} Thanks!"
    if style < 0.3:
        return f"Hi, {text[0].lower()}{text[1:]}" if not text.startswith("I ") else f"Hi! {text}"
    return text.rstrip("?.") if style < 0.45 else text
