"""Greetings, polite refusals, memory within a conversation, follow-up questions, counting and repeating."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator

from recipes.demo import extraction, sums, tools
from recipes.demo.chat import Message, Sample, assistant, user
from recipes.demo.facts import DEFINITION_FORMS, FACTS
from recipes.demo.words import (
    ANIMALS,
    CITIES,
    COLOURS,
    COMMON_NOUNS,
    COUNTRIES,
    DISHES,
    FIRST_NAMES,
    OFF_TOPIC,
)

HELLO = "Hello! I am Kvarn, a small demo model. How can I help?"
WHO = "I am kvarn-demo, a small language model that ships with Kvarn. I can answer questions about LLM serving."
SKILLS = "I can explain Kvarn and LLM serving, do small sums, count, extract JSON from a sentence and call tools."
UNKNOWN = "I do not know that. I can help with Kvarn, LLM serving, small sums, JSON extraction and tools."
SMALL_TALK: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        HELLO,
        (
            "Hello",
            "Hi",
            "Hello!",
            "Hi!",
            "Hey",
            "Hey there",
            "Good morning",
            "Good evening",
            "Hello there",
            "Greetings",
            "Hi there!",
            "Good day",
            "Hej",
            "hello",
            "hi",
            "Yo",
            "Howdy",
        ),
    ),
    (
        WHO,
        (
            "Who are you?",
            "What are you?",
            "What is your name?",
            "Which model are you?",
            "Introduce yourself.",
            "Tell me about yourself.",
            "Are you ChatGPT?",
            "Are you a robot?",
            "Who am I talking to?",
            "What model is this?",
            "Who made you?",
        ),
    ),
    (
        SKILLS,
        (
            "What can you do?",
            "How can you help me?",
            "What are your skills?",
            "Help",
            "help",
            "What can I ask you?",
            "What do you know?",
            "What are you good at?",
        ),
    ),
    ("You are welcome!", ("Thank you", "Thanks", "Thanks!", "Thank you very much.", "Thanks a lot", "Cheers")),
    ("Goodbye! Come back any time.", ("Bye", "Goodbye", "See you", "Good night", "Bye!", "See you later")),
    (
        "I am well, thank you. How can I help?",
        ("How are you?", "How are you doing?", "How is it going?", "Are you well?", "How do you do?"),
    ),
)
OFF_TOPIC_FORMS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("What is the capital of {x}?", COUNTRIES),
    ("How many people live in {x}?", COUNTRIES),
    ("Who is the president of {x}?", COUNTRIES),
    ("How do I cook {x}?", DISHES),
    ("Give me a recipe for {x}.", DISHES),
    ("Who is the mayor of {x}?", CITIES),
    ("Book a hotel in {x}.", CITIES),
    ("Who invented the {x}?", COMMON_NOUNS),
    ("Write a poem about a {x}.", COMMON_NOUNS),
    ("Who won the race in {x}?", CITIES),
)
FOLLOW_UPS: tuple[str, ...] = (
    "Why does that matter?",
    "Why is that important?",
    "Why?",
    "And why does it matter?",
    "Why should I care?",
)


NUMBERS: tuple[str, ...] = tuple(str(number) for number in range(100))


def held_by_hash(text: str, share: int = 26) -> bool:
    """Whether a text falls in the `share`/256 that is kept out of training."""
    return hashlib.sha256(text.encode()).digest()[0] < share


def echo(rng: random.Random) -> Sample:
    """Repeat a line of random items: what teaches a small model to copy, on which extraction and tools rest."""
    emails = tuple(extraction.draw_email(rng, rng.choice(FIRST_NAMES)) for _ in range(4))
    pools = (FIRST_NAMES, CITIES, COMMON_NOUNS, NUMBERS, COLOURS, tools.MODELS, tools.QUERIES, emails)
    chosen = rng.choices(pools, k=rng.choice((1, 1, 3)))
    length = rng.choice((1, 2, 3, 4, rng.randint(5, 12)))
    separator = rng.choice((" ", " ", ", "))
    line = separator.join(rng.choice(rng.choice(chosen)) for _ in range(length))
    form = rng.choice(("Repeat: {x}", "Repeat after me: {x}", "Say {x}", "{x}\nRepeat that."))
    return Sample("echo", (user(form.format(x=line)), assistant(line)))


def small_talk(rng: random.Random) -> Sample:
    """A greeting, a thank-you, or a question about the model."""
    answer, questions = rng.choice(SMALL_TALK)
    return Sample("small_talk", (user(rng.choice(questions)), assistant(answer)))


def off_topic(rng: random.Random, held_out: bool = False) -> Sample:
    """A question the model must admit it cannot answer."""
    while True:
        if rng.random() < 0.5:
            question = rng.choice(DEFINITION_FORMS).format(s=rng.choice(OFF_TOPIC))
        else:
            form, fillers = rng.choice(OFF_TOPIC_FORMS)
            question = form.format(x=rng.choice(fillers))
        if held_by_hash("off:" + question) == held_out:
            return Sample("off_topic", (user(question), assistant(UNKNOWN)), held_out=held_out)


def counting(rng: random.Random, held_out: bool = False, span: tuple[int, int] = (3, 20)) -> Sample:
    """Counting up, down, or in twos, and repeating a word."""
    while True:
        kind = rng.choice(("up", "up", "down", "even", "repeat"))
        start = rng.randint(0, 60)
        stop = start + rng.randint(*span)
        if kind == "repeat":
            word, times = rng.choice(COMMON_NOUNS), rng.randint(2, 9)
            question, answer = f"Repeat the word {word} {times} times.", " ".join([word] * times)
        elif kind == "even":
            start, stop = start - start % 2, stop - stop % 2
            question = f"List the even numbers from {start} to {stop}."
            answer = ", ".join(map(str, range(start, stop + 1, 2)))
        elif kind == "down":
            question = f"Count down from {stop} to {start}."
            answer = ", ".join(map(str, range(stop, start - 1, -1)))
        else:
            form = rng.choice(("Count from {a} to {b}.", "Count up from {a} to {b}.", "List the numbers {a} to {b}."))
            question, answer = form.format(a=start, b=stop), ", ".join(map(str, range(start, stop + 1)))
        if held_by_hash("count:" + question) == held_out:
            return Sample("counting", (user(question), assistant(answer)), held_out=held_out)


def short_counting(rng: random.Random) -> Sample:
    """Counting over short ranges, where the hard part, to stop in time, comes more often."""
    return counting(rng, span=(1, 6))


def counting_worksheet(rng: random.Random) -> list[tuple[str, str]]:
    """Plain lines `a to b: a, ..., b` outside any chat, as (given text, learnt text): dense practice in stopping."""
    lines = []
    for _ in range(rng.randint(4, 8)):
        start, step = rng.randint(0, 75), rng.choice((1, 1, -1))
        stop = max(0, start + step * rng.randint(1, 6))
        lines.append((f"{start} to {stop}: ", ", ".join(map(str, range(start, stop + step, step))) + "\n"))
    return lines


Memory = tuple[tuple[str, ...], tuple[str, ...], str, tuple[str, ...], str]
MEMORIES: tuple[Memory, ...] = (
    (
        ("My name is {x}.", "I am called {x}.", "Hi, I am {x}.", "Call me {x}."),
        FIRST_NAMES,
        "Nice to meet you, {x}.",
        ("What is my name?", "Do you remember my name?", "Who am I?"),
        "Your name is {x}.",
    ),
    (
        ("I live in {x}.", "My home is {x}.", "I moved to {x}."),
        CITIES,
        "{x} sounds like a fine place.",
        ("Where do I live?", "Which city do I live in?", "Where is my home?"),
        "You live in {x}.",
    ),
    (
        ("My favourite colour is {x}.", "I like {x} best of all colours."),
        COLOURS,
        "{x} is a good choice.",
        ("What is my favourite colour?", "Which colour do I like?"),
        "Your favourite colour is {x}.",
    ),
    (
        ("I have a {x}.", "My pet is a {x}."),
        ANIMALS,
        "A {x} is good company.",
        ("Which pet do I have?", "What is my pet?"),
        "You have a {x}.",
    ),
)


def fact_turns(rng: random.Random) -> tuple[Message, Message]:
    """A question about a fact, and its answer, in a wording that training may use."""
    fact = rng.choice(FACTS)
    wordings = [wording for wording in fact.phrasings() if not held_by_hash(f"fact:{fact.name}:{wording}")]
    return user(rng.choice(wordings)), assistant(fact.answer)


def memory(rng: random.Random, held_out: bool = False) -> Sample:
    """The user says something of themselves, other turns pass, and then asks for it."""
    while True:
        stories = rng.sample(MEMORIES, rng.choice((1, 1, 2)))
        fillers = [rng.choice(story[1]) for story in stories]
        if held_by_hash("memory:" + ":".join(fillers)) == held_out:
            break
    turns: list[Message] = []
    for story, filler in zip(stories, fillers, strict=True):
        turns += [
            user(rng.choice(story[0]).format(x=filler)),
            assistant(story[2].format(x=filler).capitalize() if story[1] is COLOURS else story[2].format(x=filler)),
        ]
    for _ in range(rng.choice((0, 0, 1, 1, 2))):
        between: Callable[[random.Random], tuple[Message, Message]] = rng.choice((sums.question_and_answer, fact_turns))
        turns += between(rng)
    order = list(zip(stories, fillers, strict=True))
    rng.shuffle(order)
    for story, filler in order:
        turns += [user(rng.choice(story[3])), assistant(story[4].format(x=filler))]
    return Sample("multi_turn", tuple(turns), held_out=held_out)


def follow_up(rng: random.Random) -> Sample:
    """A question about a fact and then: why does that matter?"""
    fact = rng.choice([fact for fact in FACTS if fact.why is not None])
    question = rng.choice([w for w in fact.phrasings() if not held_by_hash(f"fact:{fact.name}:{w}")])
    turns = (user(question), assistant(fact.answer), user(rng.choice(FOLLOW_UPS)), assistant(fact.why or ""))
    return Sample("multi_turn", turns)


def golden(rng: random.Random) -> Iterator[Sample]:
    """Small talk, refusals, counting and multi-turn samples for the golden set."""
    for answer, questions in SMALL_TALK:
        for question in rng.sample(questions, 2):
            yield Sample("small_talk", (user(question), assistant(answer)))
    for held_out in (False, True):
        for _ in range(8):
            yield off_topic(rng, held_out)
            yield counting(rng, held_out)
            yield memory(rng, held_out)
    for _ in range(8):
        yield follow_up(rng)
