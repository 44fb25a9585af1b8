"""The mixture: how often each skill is drawn, how wording is varied, and what the golden set holds."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator

from recipes.demo import conversation, extraction, longform, sums, tools
from recipes.demo.chat import Message, Sample, Segment, assistant, segments, user
from recipes.demo.conversation import held_by_hash
from recipes.demo.facts import FACTS

SYSTEM_PROMPTS: tuple[str, ...] = (
    "You are Kvarn, a helpful assistant.",
    "You are a helpful assistant.",
    "You are a concise assistant.",
    "Answer briefly.",
    "You answer questions about LLM serving.",
    "You are kvarn-demo.",
    "Be helpful and honest.",
)
OPENINGS: tuple[str, ...] = ("Hi! ", "Hello, ", "Please answer: ", "A quick question: ", "Tell me: ", "One more: ")

MIXTURE: tuple[tuple[float, Callable[[random.Random], Sample]], ...] = (
    (0.10, sums.sample),
    (0.08, sums.drill),
    (0.17, extraction.sample),
    (0.14, tools.sample),
    (0.02, conversation.small_talk),
    (0.03, conversation.off_topic),
    (0.07, conversation.counting),
    (0.09, conversation.short_counting),
    (0.05, conversation.memory),
    (0.03, conversation.follow_up),
    (0.02, longform.sample),
)
WORKSHEET_SHARE = 0.14
CHAIN_SHARE = 0.03
ECHO_SHARE = 0.10


def fact_sample(rng: random.Random) -> Sample:
    """A question about Kvarn or serving; now and then "why does it matter?"."""
    fact = rng.choice(FACTS)
    if fact.why is not None and rng.random() < 0.2:
        pool, answer = fact.why_phrasings(), fact.why
    else:
        pool, answer = fact.phrasings(), fact.answer
    pool = [wording for wording in pool if not held_by_hash(f"fact:{fact.name}:{wording}")]
    return Sample("facts", (user(rng.choice(pool)), assistant(answer)))


def varied(rng: random.Random, sample: Sample) -> Sample:
    """Change what should not change the answer: a system turn, an opening, case or final punctuation."""
    messages = list(sample.messages)
    question = messages[0]["content"]
    if sample.category in ("facts", "off_topic", "sums", "long_answers"):
        draw = rng.random()
        if draw < 0.10:
            question = rng.choice(OPENINGS) + question
        elif draw < 0.18 and question[-1] in ".?":
            question = question[:-1]
        elif draw < 0.26 and not sample.held_out:
            question = question[0].lower() + question[1:]
        messages[0] = user(question)
    if rng.random() < 0.25:
        messages.insert(0, {"role": "system", "content": rng.choice(SYSTEM_PROMPTS)})
    if not sample.tools and rng.random() < 0.04 and sample.category in ("facts", "small_talk", "off_topic"):
        sample = dataclasses.replace(sample, tools=tools.offer(rng, rng.choice(tools.TOOLS)))
    return dataclasses.replace(sample, messages=tuple(messages))


def draw_sample(rng: random.Random) -> Sample:
    """One training conversation from the mixture; what is left of the weights goes to facts."""
    draw = rng.random()
    for weight, make in MIXTURE:
        if draw < weight:
            return varied(rng, make(rng))
        draw -= weight
    return varied(rng, fact_sample(rng))


def chain(rng: random.Random, parts: int) -> Sample:
    """Several independent exchanges in one conversation, so that what came before does not disturb an answer."""
    messages: list[Message] = []
    while parts > 0:
        sample = draw_sample(rng)
        if not sample.tools and sample.messages[0]["role"] == "user":
            messages += sample.messages
            parts -= 1
    return Sample("chain", tuple(messages))


def long_documents(seed: int) -> Iterator[list[Segment]]:
    """An endless stream of conversations of some 1,000 tokens, for the far positions."""
    rng = random.Random(seed)
    while True:
        yield segments(chain(rng, rng.randint(14, 20)))


def training_documents(seed: int) -> Iterator[list[Segment]]:
    """An endless, deterministic stream of training documents."""
    rng = random.Random(seed)
    while True:
        draw = rng.random()
        if draw < CHAIN_SHARE:
            yield segments(chain(rng, rng.randint(2, 5)))
        elif draw > 1 - ECHO_SHARE:
            yield segments(conversation.echo(rng))
        elif draw < CHAIN_SHARE + WORKSHEET_SHARE:
            pieces: list[Segment] = []
            worksheet = rng.choice((sums.worksheet, conversation.counting_worksheet))
            for given, learnt in worksheet(rng):
                pieces += [Segment(given, False), Segment(learnt, True)]
            yield pieces
        else:
            yield segments(draw_sample(rng))


def golden_facts(rng: random.Random) -> Iterator[Sample]:
    """A question for every third fact in a wording seen in training, and one in a held-out wording where there is."""
    for index, fact in enumerate(FACTS):
        wordings = fact.phrasings()
        held = [wording for wording in wordings if held_by_hash(f"fact:{fact.name}:{wording}")]
        seen = [wording for wording in wordings if wording not in held]
        if index % 3 == 0:
            yield Sample("facts", (user(rng.choice(seen)), assistant(fact.answer)))
        elif held and index % 3 == 1:
            yield Sample("facts", (user(rng.choice(held)), assistant(fact.answer)), held_out=True)


def golden_set(seed: int) -> list[Sample]:
    """The golden set: about three hundred questions over all categories, without repeats."""
    rng = random.Random(seed)
    drawn = (
        *golden_facts(rng),
        *sums.golden(rng),
        *extraction.golden(rng),
        *tools.golden(rng),
        *conversation.golden(rng),
        *longform.golden(rng),
    )
    kept: dict[str, Sample] = {}
    for sample in drawn:
        kept.setdefault(repr((sample.messages[:-1], sample.tools)), sample)
    return list(kept.values())
