"""Queries for passages, made by rules: from the first sentence, a sentence inside, or the name; as keywords or
questions; with other words, other forms and slips of the keyboard."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from recipes.rerank.passages import Passage

_SAME = """
get fetch retrieve obtain read | make create build construct | remove delete drop erase | show display print
start begin launch | stop end halt terminate | change modify alter update | check verify test validate
error failure exception problem | list enumerate | find search locate look | use employ apply
convert transform turn translate | return give yield | maximum max largest biggest highest
minimum min smallest lowest | number count amount | argument parameter option | function method routine
value number | set assign | fast quick | wait block | save store write keep | load open read
compute calculate determine work | size length | allow permit let | default standard | folder directory
file document | send transmit | receive accept | run execute | split divide cut | join merge combine concatenate
choose select pick | replace substitute | contain include hold | need require | several multiple many
equal same identical | limit cap bound restrict | ignore skip | empty blank | copy duplicate clone
order sort arrange | add append insert | warning notice | wrong incorrect invalid bad | correct right valid
describe explain | close shut | user person | machine computer host | big large huge | small little tiny
often frequently | only just solely
""".replace("\n", "|")
_SYNONYMS = {
    word: [other for other in group.split() if other != word]
    for group in _SAME.split("|")
    for word in group.split()
    if len(group.split()) > 1
}
_STOP = frozenset(
    [
        "a",
        "an",
        "the",
        "this",
        "that",
        "these",
        "those",
        "of",
        "to",
        "in",
        "on",
        "at",
        "by",
        "for",
        "from",
        "with",
        "as",
        "is",
        "are",
        "was",
        "were",
        "be",
        "been",
        "being",
        "it",
        "its",
        "and",
        "or",
        "if",
        "then",
        "than",
        "which",
        "who",
        "whose",
        "whom",
        "there",
        "here",
        "into",
        "onto",
        "over",
        "under",
        "also",
        "such",
        "can",
        "may",
        "must",
        "should",
        "will",
        "would",
        "could",
        "has",
        "have",
        "had",
        "do",
        "does",
        "did",
        "not",
        "no",
        "so",
        "but",
        "any",
        "all",
        "each",
        "both",
        "more",
        "most",
        "other",
        "some",
        "only",
        "own",
        "same",
        "too",
        "very",
        "when",
    ]
)
_BEFORE = (
    "how does", "how do I", "how can I", "what is", "what are", "when is", "why is", "where is", "can I",
    "is there a way for",
    "what happens with", "how to", "which", "what controls", "explain", "tell me about",
    "what do I do about", "does it",
)  # fmt: skip
_VERBS = {"return": "get", "returns": "get", "raised": "what is raised", "given": "with"}
_KEYS = dict(zip("qwertyuiopasdfghjklzxcvbnm", "wertyuiopqsdfghjklaxcvbnmz", strict=True))


@dataclass(frozen=True, slots=True)
class Pair:
    """A query and the passage that answers it, which may lack the words that the query was made of."""

    query: str
    passage: str


def make_pair(passage: Passage, rng: random.Random) -> Pair | None:
    """A query of one of the kinds; None where the passage gives none."""
    sentences = list(passage.sentences)
    kind = rng.random()
    if kind < 0.3 and len(passage.lead.split()) >= 4:
        words, hidden = passage.lead, passage.lead if rng.random() < 0.6 else None
    elif kind < 0.4:
        words, hidden = re.sub(r"(?<=[a-z])(?=[A-Z])|[_.]", " ", passage.name), None
    else:
        words = rng.choice(sentences)
        hidden = words if rng.random() < 0.35 else None
    query = _ask(words, rng)
    shown = [each for each in sentences if each != hidden]
    if (
        len([word for word in query.split() if len(word) > 2 and word.lower() not in _STOP]) < 2
        or sum(len(each.split()) for each in shown) < 10
    ):
        return None
    text = " ".join(shown)
    if rng.random() < 0.4:
        text = f"{passage.name.replace(' ', ' > ')}\n{text}"
    return Pair(query, text)


def _ask(words: str, rng: random.Random) -> str:
    found = re.findall(r"[A-Za-z_][\w.-]*[\w]|\d+|[A-Za-z]", words)
    is_question = rng.random() < 0.6
    lost = rng.choice((0.05, 0.2, 0.35))
    kept = [
        _other(word, rng)
        for word in found
        if rng.random() > (lost if word.lower() not in _STOP else lost + (0.25 if is_question else 0.8))
    ]
    longest = rng.randint(3, 11)
    first = rng.randint(0, max(0, min(len(kept) - longest, 8)))
    kept = kept[first : first + longest]
    if is_question and kept:
        kept[0] = _VERBS.get(kept[0].lower(), kept[0])
        kept.insert(0, rng.choice(_BEFORE))
    if not is_question and rng.random() < 0.2:
        rng.shuffle(kept)
    query = " ".join(kept)
    query = query if rng.random() < 0.2 else query.lower()
    return f"{query}?" if is_question and rng.random() < 0.6 else query


def _other(word: str, rng: random.Random) -> str:
    small = word.lower()
    if small in _SYNONYMS and rng.random() < 0.35:
        return rng.choice(_SYNONYMS[small])
    if len(small) > 4 and small.isalpha() and rng.random() < 0.1:
        return small[:-1] if small.endswith("s") else f"{small}s"
    if len(small) > 4 and rng.random() < 0.02:
        place = rng.randrange(1, len(small) - 1)
        slip = rng.choice(("", small[place] * 2, _KEYS.get(small[place], ""), small[place + 1] + small[place]))
        return small[:place] + slip + small[place + 1 :]
    return word
