"""Vectors of chunks in pgvector's type, for servers that leave the search to PostgreSQL. The table belongs to no
revision of the schema, since the extension is not everywhere: it is made on first use, of `chunk_vectors`, and can be
dropped at any time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import text

from kvarn.store.engine import Store
from kvarn.store.errors import StoreError
from kvarn.store.repositories.queries import is_postgresql

TABLES = ("chunk_halfvecs", "chunk_halfvec_stores")
_LEAST_VERSION = [0, 8]
_AT_ONCE = 500
_LOCK = 0x6B76617270
"""Number of PostgreSQL's advisory lock of who makes the table."""
_STATEMENTS = (
    "CREATE EXTENSION IF NOT EXISTS vector",
    "CREATE TABLE IF NOT EXISTS chunk_halfvecs (chunk_id bigint NOT NULL REFERENCES chunks (id) ON DELETE CASCADE, "
    "embedder varchar(256) NOT NULL, dimensions integer NOT NULL, vector halfvec NOT NULL, "
    "PRIMARY KEY (chunk_id, embedder))",
    "CREATE TABLE IF NOT EXISTS chunk_halfvec_stores (store_id varchar(64) NOT NULL REFERENCES chunk_stores (store_id) "
    "ON DELETE CASCADE, embedder varchar(256) NOT NULL, revision bigint NOT NULL, PRIMARY KEY (store_id, embedder))",
)
_MISSING = text(
    "SELECT v.chunk_id, v.vector FROM chunk_vectors v JOIN chunks c ON c.id = v.chunk_id "
    "LEFT JOIN chunk_halfvecs h ON h.chunk_id = v.chunk_id AND h.embedder = v.embedder "
    "WHERE c.store_id = :store AND v.embedder = :embedder AND h.chunk_id IS NULL AND v.chunk_id > :after "
    "ORDER BY v.chunk_id LIMIT :count"
)
_OWN = (
    "JOIN chunks c ON c.id = h.chunk_id JOIN chunk_files f ON f.store_id = c.store_id AND f.file_id = c.file_id "
    "AND f.generation = c.generation"
)


async def prepare(store: Store) -> None:
    """Make the extension and its tables. Raises `StoreError` where that cannot be done."""
    with store.explained():
        async with store.transaction() as session:
            if not is_postgresql(session):
                raise StoreError("retrieval.index is pgvector, which needs PostgreSQL (store.url)")
            await session.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": _LOCK})
            for statement in _STATEMENTS:
                await session.execute(text(statement))
            version = str(await session.scalar(text("SELECT extversion FROM pg_extension WHERE extname = 'vector'")))
            if [int(part) for part in version.split(".")[:2]] < _LEAST_VERSION:
                raise StoreError(f"the extension is pgvector {version}: update it to 0.8, which filters as it walks")


async def index_dimensions(store: Store, dimensions: int) -> None:
    """Make the graph (HNSW) over vectors of this size."""
    size = int(dimensions)
    async with store.migrating() as connection:  # a large table takes long
        await connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": _LOCK})
        await connection.execute(
            text(
                f"CREATE INDEX IF NOT EXISTS ix_chunk_halfvecs_{size} ON chunk_halfvecs USING hnsw "
                f"((vector::halfvec({size})) halfvec_ip_ops) WHERE dimensions = {size}"
            )
        )


async def copied_revision(store: Store, store_id: str, embedder: str) -> int:
    """The revision of a vector store whose vectors are all there."""
    query = text("SELECT revision FROM chunk_halfvec_stores WHERE store_id = :store AND embedder = :embedder")
    async with store.reading() as session:
        return int(await session.scalar(query, {"store": store_id, "embedder": embedder}) or 0)


async def read_missing(store: Store, store_id: str, embedder: str, after: int) -> list[tuple[int, bytes]]:
    """Some of the vectors that are not there yet, by their chunks' ids."""
    named = {"store": store_id, "embedder": embedder, "after": after, "count": _AT_ONCE}
    async with store.reading() as session:
        return [(row.chunk_id, row.vector) for row in await session.execute(_MISSING, named)]


async def add_copies(store: Store, embedder: str, dimensions: int, vectors: Mapping[int, str]) -> None:
    """Add vectors, in pgvector's spelling. Those of chunks that have been deleted meanwhile are left out."""
    new = text(
        "INSERT INTO chunk_halfvecs (chunk_id, embedder, dimensions, vector) "
        "SELECT c.id, :embedder, :dimensions, CAST(CAST(:vector AS text) AS halfvec) FROM chunks c WHERE c.id = :id "
        "ON CONFLICT DO NOTHING"
    )
    rows = [{"id": i, "embedder": embedder, "dimensions": dimensions, "vector": each} for i, each in vectors.items()]
    async with store.transaction() as session:
        await session.execute(new, rows)


async def note_copied(store: Store, store_id: str, embedder: str, revision: int) -> None:
    done = text(
        "INSERT INTO chunk_halfvec_stores (store_id, embedder, revision) "
        "SELECT s.store_id, :embedder, :revision FROM chunk_stores s WHERE s.store_id = :store "
        "ON CONFLICT (store_id, embedder) DO UPDATE SET revision = greatest(chunk_halfvec_stores.revision, :revision)"
    )
    async with store.transaction() as session:
        await session.execute(done, {"store": store_id, "embedder": embedder, "revision": revision})


async def nearest_chunks(
    store: Store, files: Mapping[str, Sequence[str] | None], embedder: str, vector: str, dimensions: int, count: int
) -> list[tuple[int, float]]:
    """Chunks by their products with a vector, best first. `files`: those that may be seen, by store; None: all of it.
    The filter holds while the graph is walked, which goes on until there are enough (pgvector 0.8)."""
    size, conditions = int(dimensions), []
    named: dict[str, object] = {"embedder": embedder, "vector": vector, "count": count, "size": size}
    for place, (store_id, allowed) in enumerate(files.items()):
        own = f"c.store_id = :store{place}"
        named[f"store{place}"] = store_id
        if allowed is not None:
            own += f" AND c.file_id = ANY(:files{place})"
            named[f"files{place}"] = list(allowed)
        conditions.append(f"({own})")
    product = f"h.vector::halfvec({size}) <#> CAST(CAST(:vector AS text) AS halfvec({size}))"
    query = text(
        f"SELECT h.chunk_id, -({product}) AS score FROM chunk_halfvecs h {_OWN} "
        f"WHERE h.dimensions = {size} AND h.embedder = :embedder AND ({' OR '.join(conditions)}) "
        f"ORDER BY {product} LIMIT :count"
    )
    del named["size"]
    async with store.reading() as session:
        await session.execute(text("SET LOCAL hnsw.iterative_scan = strict_order"))
        await session.execute(text(f"SET LOCAL hnsw.ef_search = {min(1000, max(40, int(count)))}"))
        return [(row.chunk_id, float(row.score)) for row in await session.execute(query, named)]
