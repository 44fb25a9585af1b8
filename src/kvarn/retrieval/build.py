"""Makes the retriever of a gateway process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kvarn.answers.context import ServingContext
from kvarn.config.schema import KvarnConfig
from kvarn.retrieval.embedding import Embedders
from kvarn.retrieval.reranking import Reranker
from kvarn.retrieval.search import Retriever
from kvarn.retrieval.small_embedder import SmallEmbedder
from kvarn.store.engine import Store
from kvarn.text.checkpoint import small_embedder

FOLDER = "retrieval"


def make_retriever(
    config: KvarnConfig,
    store: Store,
    serving: Callable[[], ServingContext],
    wake_fleet: Callable[[], None] | None = None,
) -> Retriever:
    """The retriever, whose models `serving` serves. `wake_fleet`: has the fleet look at its deployments at once; None:
    this server has no fleet that would start the small embedding model."""
    settings = config.retrieval
    small = None
    if wake_fleet is not None and settings.start_small_model and small_embedder() is not None:
        small = SmallEmbedder(store, wake_fleet).start
    embedders = Embedders(serving, settings, small)
    folder = Path(config.data_dir).expanduser() / FOLDER
    return Retriever(store, settings, folder, embedders, Reranker(serving, settings))
