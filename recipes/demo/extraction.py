"""Copying values out of a sentence into JSON."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator

from recipes.demo.chat import Sample, assistant, user
from recipes.demo.words import CITIES, FIRST_NAMES, MAIL_DOMAINS

SENTENCES: dict[tuple[str, ...], tuple[str, ...]] = {
    ("name", "age", "city"): (
        "{name} is {age} years old and lives in {city}.",
        "My name is {name}, I am {age} and I live in {city}.",
        "{name}, {age}, comes from {city}.",
        "In {city} lives {name}, who is {age} years old.",
        "I am {name} from {city} and I am {age} years old.",
    ),
    ("name", "city"): (
        "{name} lives in {city}.",
        "I met {name} in {city}.",
        "{name} moved to {city} last year.",
        "{city} is the home of {name}.",
        "My friend {name} works in {city}.",
    ),
    ("name", "age"): (
        "{name} is {age} years old.",
        "{name} turned {age} yesterday.",
        "I am {name} and I am {age}.",
        "At {age}, {name} is still curious.",
    ),
    ("name", "email"): (
        "Write to {name} at {email}.",
        "{name} can be reached at {email}.",
        "The address of {name} is {email}.",
        "Contact: {name}, {email}.",
    ),
    ("name", "email", "city"): (
        "{name} from {city} uses {email}.",
        "Please add {name}, {email}, office {city}.",
        "{name} works in {city} and reads mail at {email}.",
    ),
}
REQUESTS: tuple[str, ...] = (
    "Extract {fields} as JSON: {sentence}",
    "{sentence} Extract {fields} as JSON.",
    "Give {fields} as JSON. {sentence}",
    "Return JSON with {fields}: {sentence}",
    "{sentence}\nReturn {fields} as JSON.",
)


def is_held_out(values: tuple[str, ...]) -> bool:
    """Whether a combination of values is kept out of training (a tenth of them, by hash)."""
    return hashlib.sha256(("extract:" + ":".join(values)).encode()).digest()[0] < 26


def draw_email(rng: random.Random, name: str) -> str:
    """An address on a reserved domain, made from the name, another name and digits."""
    local = rng.choice(
        (name.lower(), f"{name.lower()}.{rng.choice(FIRST_NAMES).lower()}", f"{name.lower()}{rng.randint(1, 99)}")
    )
    return f"{local}@{rng.choice(MAIL_DOMAINS)}"


def join_words(words: tuple[str, ...]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def sample(rng: random.Random, held_out: bool = False) -> Sample:
    """A sentence and the JSON object with the wanted fields, in the order they were asked for."""
    keys = rng.choice(tuple(SENTENCES))
    while True:
        name = rng.choice(FIRST_NAMES)
        values: dict[str, str | int] = {"name": name, "city": rng.choice(CITIES), "age": rng.randint(5, 99)}
        values["email"] = draw_email(rng, name)
        if is_held_out(tuple(str(values[key]) for key in keys)) == held_out:
            break
    sentence = rng.choice(SENTENCES[keys]).format(**values)
    wanted = keys if rng.random() < 0.7 else tuple(rng.sample(keys, rng.randint(1, len(keys))))
    request = rng.choice(REQUESTS).format(fields=join_words(wanted), sentence=sentence)
    answer = json.dumps({key: values[key] for key in wanted}, ensure_ascii=False)
    return Sample("extraction", (user(request), assistant(answer)), held_out=held_out)


def golden(rng: random.Random) -> Iterator[Sample]:
    """Extraction for the golden set; the held-out combinations of values were never trained."""
    for held_out in (False, True):
        for _ in range(18):
            yield sample(rng, held_out)
