"""Searches of any history of stores find what a search of plain lists finds: same chunks, same scores, same order."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvarn.retrieval.types import SearchResult
from kvarn.store.engine import Store
from new_tenants import create_organization
from profiles import examples
from retrieval_world import RetrievalWorld, Row, plain_search

WORDS = ("red", "green", "blue", "Grün", "über", "東京")
TEXTS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map(" ".join)
FILES, STORES, READERS = ("file-a", "file-b", "file-c"), ("vs-1", "vs-2"), ("u1", "u2")
LEVELS = st.integers(0, 2)
NAMES = itertools.count()

PUT = st.tuples(
    st.just("put"),
    st.sampled_from(STORES),
    st.sampled_from(FILES),
    st.lists(TEXTS, min_size=1, max_size=4),
    LEVELS,
    st.none() | st.lists(st.sampled_from(READERS), max_size=2, unique=True),
)
DESCRIBE = st.tuples(st.just("describe"), st.sampled_from(STORES), st.sampled_from(FILES), LEVELS)
REMOVE = st.tuples(st.just("remove"), st.sampled_from(STORES), st.sampled_from(FILES))
DROP = st.tuples(st.just("drop"), st.sampled_from(STORES))
SEARCH = st.tuples(
    st.just("search"),
    st.lists(st.sampled_from(STORES), min_size=1, max_size=2, unique=True),
    st.lists(TEXTS, min_size=1, max_size=2, unique=True),
    st.none() | LEVELS,
    st.none() | st.sampled_from(READERS),
    st.integers(1, 8),
)


class PlainStores:
    """What the stores should hold, by store and file: level, readers and rows."""

    def __init__(self) -> None:
        self.files: dict[tuple[str, str], tuple[int, Sequence[str] | None, list[Row]]] = {}
        self.written = 0

    def put(self, store: str, file: str, texts: Sequence[str], level: int, readers: Sequence[str] | None) -> None:
        rows = []
        for text in texts:
            self.written += 1
            rows.append(Row(self.written, file, text))
        self.files[store, file] = level, readers, rows

    def rows(self, stores: Sequence[str], level: int | None, reader: str | None) -> list[Row]:
        return [
            row
            for (store, _), (own, readers, rows) in self.files.items()
            if store in stores and (level is None or own == level)
            if reader is None or readers is None or reader in readers
            for row in rows
        ]


@settings(max_examples=examples(60), suppress_health_check=list(HealthCheck))
@given(st.lists(st.one_of(PUT, PUT, DESCRIBE, REMOVE, DROP, SEARCH, SEARCH), min_size=4, max_size=25))
async def test_any_history_is_searched_like_plain_lists(store: Store, tmp_path: Any, history: Any) -> None:
    name = next(NAMES)
    owner = await create_organization(store, str(name))
    stranger = await create_organization(store, f"not {name}")
    world, plain = RetrievalWorld(store, tmp_path / str(name)), PlainStores()
    here = {each: f"{each}-{name}" for each in STORES}
    version = 0
    for step in [*history, ("search", list(STORES), ["red 東京"], None, None, 8)]:
        match step:
            case ("put", at, file, texts, level, readers):
                version += 1
                attributes = {"level": level}
                await world.add(
                    owner.owner, here[at], file, texts, attributes=attributes, readers=readers, version=str(version)
                )
                plain.put(at, file, texts, level, readers)
            case ("describe", at, file, level) if (at, file) in plain.files:
                _, readers, rows = plain.files[at, file]
                await world.retriever.put_file(
                    owner.owner, here[at], file, filename="x", attributes={"level": level}, readers=readers
                )
                plain.files[at, file] = level, readers, rows
            case ("remove", at, file):
                await world.retriever.remove_file(owner.owner, here[at], file)
                plain.files.pop((at, file), None)
            case ("drop", at):
                await world.retriever.remove_store(owner.owner, here[at])
                plain.files = {key: value for key, value in plain.files.items() if key[0] != at}
            case ("search", stores, queries, level, reader, count):
                arguments: Any = {
                    "filters": None if level is None else {"type": "eq", "key": "level", "value": level},
                    "readers": None if reader is None else frozenset([reader]),
                    "max_results": count,
                }
                named = [here[each] for each in stores]
                wanted = plain_search(plain.rows(stores, level, reader), queries, world.config.candidates)[:count]
                for retriever in (world.retriever, world.another()):
                    found = await retriever.search(owner, named, queries, **arguments)
                    assert shown(found) == [(row.file_id, row.text, score) for row, score in wanted]
                    assert found.degraded == ()
                assert not (await world.retriever.search(stranger, named, queries)).hits
    world.retriever.close()


def shown(found: SearchResult) -> list[tuple[str, str, float]]:
    return [(hit.file_id, hit.chunk.text, pytest.approx(hit.score, abs=2e-6)) for hit in found.hits]
