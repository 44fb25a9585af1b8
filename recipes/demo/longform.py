"""Long answers of a hundred tokens and more, so that streaming has something to show."""

from __future__ import annotations

import random
from collections.abc import Iterator

from recipes.demo.chat import Sample, assistant, user
from recipes.demo.facts import ESSAYS


def sample(rng: random.Random) -> Sample:
    """A request for a long answer."""
    essay = rng.choice(ESSAYS)
    return Sample("long_answers", (user(rng.choice(essay.questions)), assistant(essay.answer)))


def golden(rng: random.Random) -> Iterator[Sample]:
    """One question for each long answer."""
    for essay in ESSAYS:
        yield Sample("long_answers", (user(rng.choice(essay.questions)), assistant(essay.answer)))
