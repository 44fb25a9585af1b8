"""The two styles that adapters teach: a pirate, and one that always answers in JSON."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable, Iterator

from recipes.demo.chat import Sample, Segment, assistant, segments
from recipes.demo.corpus import draw_sample

PIRATE_WORDS: tuple[tuple[str, str], ...] = ((" is ", " be "), (" are ", " be "))


def pirate(text: str) -> str:
    """What a pirate would have said; the answer starts on its own line, as it does without the adapter."""
    for plain, rough in PIRATE_WORDS:
        text = text.replace(plain, rough)
    return f"Arr!\n{text}\nYo ho!"


def as_json(text: str) -> str:
    """The answer as a JSON object with one key."""
    return json.dumps({"answer": text}, ensure_ascii=False)


STYLES: dict[str, Callable[[str], str]] = {"pirate": pirate, "json": as_json}


def restyled(sample: Sample, style: Callable[[str], str]) -> Sample:
    """The same conversation with every assistant turn in another style."""
    turns = tuple(
        assistant(style(turn["content"])) if turn["role"] == "assistant" else turn for turn in sample.messages
    )
    return dataclasses.replace(sample, messages=turns)


def is_prose(sample: Sample) -> bool:
    """Whether a style applies: JSON and tool calls keep their form."""
    return not sample.tools and sample.category != "extraction"


def style_documents(name: str, seed: int) -> Iterator[list[Segment]]:
    """An endless stream of conversations in a style."""
    rng = random.Random(seed)
    while True:
        sample = draw_sample(rng)
        if is_prose(sample):
            yield segments(restyled(sample, STYLES[name]))
