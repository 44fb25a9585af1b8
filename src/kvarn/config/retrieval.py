"""Settings of vector stores: embedding, search, and what of it reaches a prompt."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from kvarn.config.section import Section


class RetrievalConfig(Section):
    """Search in vector stores."""

    embedding_model: str | None = Field(None, min_length=1)
    """Model that embeds the chunks of new vector stores and the queries to them. Default: the embedding model that is
    served, if it is the only one; else, with the extra `retrieval`, a small model that is started on first use; else
    none, and searches compare words alone."""

    start_small_model: bool = True
    """Start the small embedding model where no other is served."""

    reranker: str | None = Field(None, min_length=1)
    """Model that reranks what a search found, where the request leaves it to the server. Default: the cross-encoder
    that is served, if it is the only one; else results stay as they were fused."""

    index: Literal["exact", "usearch", "pgvector"] = "exact"
    """Search of vectors. `exact` compares every chunk, and finds what is nearest. `usearch` (an extra) walks a graph in
    memory, for stores far beyond 200,000 chunks. `pgvector` leaves it to PostgreSQL, which needs that extension."""

    memory_mib: int = Field(512, ge=1)
    """MiB of indexes that a gateway process keeps in memory; as much again for copies of vectors that make the exact
    search fast. Indexes not used for longest are read again from their files, or the database."""

    candidates: int = Field(100, ge=10, le=1000)
    """Chunks that each ranking (words, vectors) of each query gives to the fusion."""

    rerank_candidates: int = Field(30, ge=1, le=200)
    """Chunks that are reranked."""

    diversity: float = Field(0.1, ge=0, le=1)
    """Weight of unlikeness to the results before, against relevance; 0: results may repeat each other."""

    max_chunks_per_file: int | None = Field(None, ge=1)
    """Results from one file, while there are others. Default: as many as are relevant."""

    embedding_timeout_s: float = Field(10.0, gt=0)
    """Seconds that a search waits for the vectors of its queries; it then compares words alone, and says so."""

    rerank_timeout_s: float = Field(5.0, gt=0)
    """Seconds that a search waits for the reranker; results then stay as they were fused, and the search says so."""

    cached_queries: int = Field(4096, ge=0)
    """Vectors of queries that a gateway process remembers."""
