"""JSON Schema's own test suite against grammars: what they allow is valid, what is valid can be written.

    make schema-suite
    python -m benchmarks.schema_suite
    python -m benchmarks.schema_suite --walks 1000

Prints the table of docs/internals/measured_engine.md: by file of the suite (draft 2020-12 and its formats) the schemas
and those that are refused; the valid examples and those that cannot be written; the answers of random walks through
masks, and those that jsonschema-rs finds invalid, formats asserted.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice, permutations
from pathlib import Path
from typing import Any

import numpy as np
from llguidance import LLMatcher

from kvarn.grammar.answers import exact, validator
from kvarn.grammar.errors import GrammarError
from kvarn.grammar.text import bytes_as_tokens, check, from_json_schema, limits

DIRECTORY = Path(__file__).parents[1] / "tests" / ".schema_suite" / "draft2020-12"
"""Where `make schema-suite` puts it."""
_END = 256
_ORDERS = 24
"""Orders of an example's properties that are tried: answers have those of the schema."""


@dataclass(frozen=True, slots=True)
class Case:
    """A schema of the suite, and its valid examples."""

    keyword: str
    name: str
    schema: Any
    valid: list[Any]


@dataclass(slots=True)
class Count:
    """What came of the cases of one keyword."""

    schemas: int = 0
    refused: int = 0
    examples: int = 0
    unwritten: list[str] = field(default_factory=list)
    answers: int = 0
    invalid: list[str] = field(default_factory=list)


def cases(directory: Path = DIRECTORY) -> list[Case]:
    """All of the suite, those of formats that are asserted included."""
    found: list[Case] = []
    for path in [*sorted(directory.glob("*.json")), *sorted((directory / "optional" / "format").glob("*.json"))]:
        keyword = path.stem if path.parent == directory else f"format: {path.stem}"
        for group in json.loads(path.read_text("utf-8")):
            valid = [test["data"] for test in group["tests"] if test["valid"]]
            found.append(Case(keyword, group["description"], group["schema"], valid))
    return found


def try_case(case: Case, count: Count, walks: int, seed: int) -> None:
    """Count a case: examples that cannot be written, and answers of random walks that are invalid."""
    count.schemas += 1
    try:
        grammar = from_json_schema(case.schema)
        check(grammar)
        is_valid = validator(json.dumps(case.schema))
    except GrammarError:
        count.refused += 1
        return
    matcher = LLMatcher(bytes_as_tokens(), grammar, log_level=0, limits=limits())
    for value in case.valid:
        if is_valid(value):  # some formats are annotations to the suite
            count.examples += 1
            if not any(accepts(matcher, text) for text in islice(spellings(value), _ORDERS)):
                count.unwritten.append(f"{case.name}: {json.dumps(value)[:80]}")
    chance = random.Random(f"{seed} {case.keyword} {case.name}")
    for _ in range(walks):
        text = walk(matcher, chance)
        if text is not None:
            count.answers += 1
            if not is_valid(exact(text)):
                count.invalid.append(f"{case.name}: {text[:200]}")


def accepts(matcher: LLMatcher, text: str) -> bool:
    """Whether a grammar lets a text be written from its beginning to its end."""
    tokens, here = list(text.encode()), matcher.deep_copy()
    return bool(here.try_consume_tokens(tokens) == len(tokens) and here.is_accepting())


def spellings(value: Any) -> Iterator[str]:
    """An example as JSON, its properties in each order."""
    for ordered in _orders(value):
        yield json.dumps(_as_written(ordered), ensure_ascii=False)


def _as_written(value: Any) -> Any:
    """With integers without a point."""
    if isinstance(value, dict):
        return {name: _as_written(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_as_written(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _orders(value: Any) -> Iterator[Any]:
    if isinstance(value, dict) and value:
        for names in permutations(value):
            yield from _with_values({}, names, value)
    elif isinstance(value, list) and any(isinstance(each, dict) for each in value):
        firsts = [list(islice(_orders(each), 6)) for each in value]
        for place in range(max(map(len, firsts))):
            yield [each[min(place, len(each) - 1)] for each in firsts]
    else:
        yield value


def _with_values(begun: dict[str, Any], names: tuple[str, ...], value: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if not names:
        yield dict(begun)
        return
    for each in _orders(value[names[0]]):
        yield from _with_values({**begun, names[0]: each}, names[1:], value)


def walk(matcher: LLMatcher, chance: random.Random, longest: int = 120) -> str | None:
    """An answer of random tokens; None: it got too long. It prefers what ends strings and values."""
    here, written = matcher.deep_copy(), bytearray()
    for _ in range(longest):
        mask = here.compute_bitmask()
        allowed = np.unpackbits(np.frombuffer(mask, dtype=np.uint8), bitorder="little").nonzero()[0].tolist()
        if not allowed:
            return None
        likely = [token for token in allowed if token in _LIKELY]
        token = chance.choice(likely if likely and chance.random() < 0.5 else allowed)
        if token == _END:
            return written.decode()
        written.append(token)
        assert here.consume_token(token), here.get_error()
    return None


_LIKELY = frozenset((*b'"]}0:-.eE\\', _END))


def counted(walks: int, seed: int) -> dict[str, Count]:
    """What came of the whole suite, by keyword."""
    counts: dict[str, Count] = defaultdict(Count)
    for case in cases():
        try_case(case, counts[case.keyword], walks, seed)
    return counts


def table(counts: dict[str, Count]) -> str:
    """As Markdown."""
    lines = ["| | schemas | refused | examples | not written | answers | invalid |", "|---|---|---|---|---|---|---|"]
    total = Count()
    for name, each in counts.items():
        lines.append(_row(name, each))
        total.schemas += each.schemas
        total.refused += each.refused
        total.examples += each.examples
        total.unwritten += each.unwritten
        total.answers += each.answers
        total.invalid += each.invalid
    return "\n".join([*lines, _row("**all**", total)])


def _row(name: str, count: Count) -> str:
    numbers = (
        count.schemas,
        count.refused,
        count.examples,
        len(count.unwritten),
        f"{count.answers:,}",
        len(count.invalid),
    )
    return f"| {name} | {' | '.join(map(str, numbers))} |"


def main() -> None:
    """Print the table, and what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--walks", type=int, default=200, help="answers of each schema")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if not DIRECTORY.is_dir():
        raise SystemExit(f"{DIRECTORY} is not there: make schema-suite")
    counts = counted(arguments.walks, arguments.seed)
    print(table(counts))
    for name, count in counts.items():
        for kind, found in (("not written", count.unwritten), ("invalid", count.invalid)):
            for each in found:
                print(f"{name}, {kind}: {each}")


if __name__ == "__main__":
    main()
