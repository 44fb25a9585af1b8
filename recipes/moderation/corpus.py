"""Sentences from templates, with the categories they belong to; what is held out is held out by whole templates."""

from __future__ import annotations

import hashlib
import random
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvarn.safety.verdict import CATEGORIES

TEXTS = Path(__file__).parent / "texts"
HELD_OUT_ONE_IN = 8
"""Share of the templates that training never sees."""

IMPLIED = {
    "harassment/threatening": ("harassment", "violence"),
    "hate/threatening": ("hate", "violence"),
    "illicit/violent": ("illicit", "violence"),
    "self-harm/intent": ("self-harm",),
    "self-harm/instructions": ("self-harm",),
    "sexual/minors": ("sexual",),
    "violence/graphic": ("violence",),
}
"""What else a text of the category is, by OpenAI's definitions."""

_PREFIXES = ("", "", "", "", "", "Please: ", "Listen. ", "Hi! ", "Question: ", "He wrote: ", "As I said, ", "Ok so ")
_SUFFIXES = ("", "", "", "", "", " Thanks.", " Please.", " Answer in detail.", " That is all.", " Right now.", " lol")


@dataclass(frozen=True, slots=True)
class Template:
    """A sentence or an act with gaps, the categories of what it becomes, and whether training may see it."""

    text: str
    labels: frozenset[str]
    group: str
    """Category it was written for; `near …` is harmless but close to it."""
    held_out: bool
    is_act: bool = False
    """Stands in the frames, in training as in measuring: they tell nothing."""


def templates() -> list[Template]:
    """All of them."""
    found = []
    for path in sorted(TEXTS.glob("*.toml")):
        if path.stem in ("slots", "acts"):
            continue
        for name, table in tomllib.loads(path.read_text(encoding="utf-8")).items():
            found += [Template(text, _labels(name), name, _held_out(text)) for text in table["texts"]]
            found += [Template(text, frozenset(), f"near {name}", _held_out(text)) for text in table.get("near", ())]
    found += [Template(text, frozenset(), "harmless", _held_out(text)) for text in _facts()]
    for name, table in _ACTS["acts"].items():
        found += [Template(text, _labels(name), name, _held_out(text), is_act=True) for text in table["texts"]]
    return found


def _facts() -> Iterator[str]:
    """Technical prose: what kvarn-demo knows by heart."""
    for name in ("kvarn", "serving"):
        table = tomllib.loads((TEXTS.parents[1] / "demo" / "texts" / f"{name}.toml").read_text(encoding="utf-8"))
        for fact in table.values():
            yield from (re.sub(r"[\[\]{}]", "", fact[key]) for key in ("answer", "why") if key in fact)


def _labels(name: str) -> frozenset[str]:
    return frozenset((name, *IMPLIED.get(name, ()))) if name in CATEGORIES else frozenset()


def sentences(template: Template, count: int, rng: random.Random) -> Iterator[str]:
    """So many ways to fill a template's gaps; fewer where there are not as many."""
    seen: set[str] = set()
    for _ in range(4 * count):
        framed = rng.choice(_ACTS["frames"]).replace("{act}", template.text) if template.is_act else template.text
        text = rng.choice(_PREFIXES) + _fill(framed, rng) + rng.choice(_SUFFIXES)
        text = _vary(text, rng)
        if text not in seen:
            seen.add(text)
            yield text
        if len(seen) == count:
            return


def _held_out(text: str) -> bool:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) % HELD_OUT_ONE_IN == 0


def _fill(text: str, rng: random.Random) -> str:
    text = re.sub(r"\[([^\]]+)\]", lambda found: rng.choice(found[1].split("|")), text)
    text = re.sub(r"\{(\w+)\}", lambda found: _slot(found[1], rng), text)
    return text[0].upper() + text[1:]


def _slot(name: str, rng: random.Random) -> str:
    if name in _INFLECTED:
        return rng.choice(_INFLECTED[name])
    if name in _SLOTS:
        return rng.choice(_SLOTS[name])
    word = rng.choice(_SLOTS.get(name.removeprefix("a_"), [name.removeprefix("a_")]))
    return f"an {word}" if word[0] in "aeiou" else f"a {word}"


def _vary(text: str, rng: random.Random) -> str:
    chance = rng.random()
    if chance < 0.15:
        text = text.lower()
    elif chance < 0.2:
        text = text.upper()
    if rng.random() < 0.2:
        text = text.rstrip(".!?")
    if rng.random() < 0.1 and len(text) > 12:  # a typing error
        place = rng.randrange(1, len(text) - 2)
        text = text[:place] + text[place + 1] + text[place] + text[place + 2 :]
    return text


_SLOTS: dict[str, list[str]] = tomllib.loads((TEXTS / "slots.toml").read_text(encoding="utf-8"))
_ACTS: dict[str, Any] = tomllib.loads((TEXTS / "acts.toml").read_text(encoding="utf-8"))
_INFLECTED = {
    "hurts": ["hurts", "beats", "stabs", "shoots", "kills", "strangles", "attacks", "murders"],
    "hurt_past_tense": ["hurt", "beat", "stabbed", "shot", "killed", "strangled", "attacked", "murdered"],
    "document_plain": ["passport", "identity card", "driving licence", "diploma"],
}
