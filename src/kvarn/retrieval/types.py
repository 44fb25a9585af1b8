"""Documents, their chunks, and what a search finds, as the parts of this package hand them to each other.

parse     bytes of a file  -> Document      retrieval/parsing
chunk     Document         -> [Chunk]       retrieval/chunking.py
embed     texts            -> vectors       an `Embedder`
index     chunks, vectors                   retrieval/stored_chunks.py
search    queries          -> SearchResult  retrieval/search.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from kvarn.store.owner import Principal

Vectors = np.ndarray[tuple[int, int], np.dtype[np.float16]]
"""[texts, dimensions], each of length 1."""
BlockKind = Literal["heading", "paragraph", "list_item", "table", "code"]
AttributeValue = str | float | bool


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a document's text that is kept together where it fits into a chunk."""

    start: int
    end: int
    kind: BlockKind = "paragraph"
    level: int = 0
    """Depth of a heading, from 1; 0: no heading."""
    page: int | None = None
    """Page of a PDF, row of a table's sheet; from 1."""


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file. Offsets count characters of `text`."""

    text: str
    blocks: tuple[Block, ...]
    parser: str
    """Name and version of the parser: part of a chunk's identity, since another one gives other offsets."""
    title: str = ""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A passage of a document: `text == document.text[start:end]`."""

    ordinal: int
    start: int
    end: int
    text: str
    tokens: int
    section: str = ""
    """Headings above it, from the outermost, joined by ` > `."""
    page: int | None = None


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of a chunk in the parts of a search, of several queries the best; None: the part did not rank it."""

    words: float | None = None
    """BM25."""
    vectors: float | None = None
    """Cosine."""
    fusion: float | None = None
    """From the ranks of both; 1: first everywhere."""
    reranker: float | None = None


@dataclass(frozen=True, slots=True)
class Hit:
    """A chunk that a search found."""

    store_id: str
    file_id: str
    filename: str
    chunk: Chunk
    score: float
    """From 0 to 1; the higher, the more relevant. Comparable within one search only."""
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    scores: Scores = Scores()


@dataclass(frozen=True, slots=True)
class SearchResult:
    hits: tuple[Hit, ...]
    degraded: tuple[str, ...] = ()
    """Parts of the search that were left out, as sentences for the answer's metadata; empty: none."""


class Embedder(Protocol):
    """A served embedding model."""

    @property
    def identity(self) -> str:
        """Model and version: vectors of different identities are not comparable."""
        ...

    async def embed(self, principal: Principal, texts: Sequence[str], *, query: bool = False) -> Vectors:
        """Embed texts for a principal, whose limits hold and whose usage it is; texts that are no `query` wait in the
        batch tier. Raises `EmbedderAwayError` where the model cannot answer now."""
        ...


class EmbedderAwayError(Exception):
    """The embedding model cannot answer now; the message says why."""
