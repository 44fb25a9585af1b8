"""From sentences to windows of text: alone, amid harmless text, and harmless text cut anywhere."""

from __future__ import annotations

import random
from dataclasses import dataclass

from recipes.moderation.corpus import Template, sentences, templates

from kvarn.safety.classifier import WINDOWS
from kvarn.safety.features import normalise

PER_TEMPLATE = 9
HARMLESS_FACTOR = 4
"""Harmless templates are used so many times as often: most of what a server sees is harmless."""


@dataclass(frozen=True, slots=True)
class Example:
    """A window of normalised text, the categories it belongs to, and what it was made for."""

    text: bytes
    labels: frozenset[str]
    group: str


def examples(held_out: bool, seed: int, per_template: int = PER_TEMPLATE) -> list[Example]:
    """Windows made from the templates that are held out, or from all others."""
    rng = random.Random(seed)
    chosen = [template for template in templates() if template.held_out == held_out]
    made = [pair for template in chosen for pair in _of(template, per_template, rng)]
    harmless = [text for text, template in made if not template.labels]
    found = []
    for text, template in made:
        found.append(Example(_cut(normalise(text), rng), template.labels, template.group))
        for window in WINDOWS:
            if rng.random() < 0.6:
                found.append(Example(_amid(text, harmless, window, rng), template.labels, template.group))
    for _ in range(len(made)):
        several = normalise(" ".join(rng.choice(harmless) for _ in range(6)))
        start, size = rng.randrange(max(1, len(several) - WINDOWS[0])), rng.choice(WINDOWS)
        found.append(Example(several[start : start + size], frozenset(), "harmless"))
    rng.shuffle(found)
    return found


def _of(template: Template, count: int, rng: random.Random) -> list[tuple[str, Template]]:
    if template.group == "harmless":
        count *= HARMLESS_FACTOR
    return [(text, template) for text in sentences(template, count, rng)]


def _cut(text: bytes, rng: random.Random) -> bytes:
    """At most the longest window, from a random place."""
    if len(text) <= WINDOWS[-1]:
        return text
    start = rng.randrange(len(text) - WINDOWS[-1])
    return text[start : start + WINDOWS[-1]]


def _amid(text: str, harmless: list[str], window: int, rng: random.Random) -> bytes:
    """The whole sentence somewhere in a window of harmless text."""
    core = normalise(text)
    room = max(0, window - len(core))
    before = rng.randint(0, room)
    left, right = normalise(rng.choice(harmless)), normalise(rng.choice(harmless) + " " + rng.choice(harmless))
    return left[:-1][max(0, len(left) - 1 - before) :] + core + right[1:][: room - before]
