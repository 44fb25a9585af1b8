"""Resolves the names of requests: routes, models, their versions and adapters; waits for a first replica."""

from __future__ import annotations

from typing import Literal

from kvarn.answers.model_routes import ModelRoutes
from kvarn.answers.record import FoundModel, RequestRecord
from kvarn.catalog.held_requests import HeldRequests, may_have_no_replica
from kvarn.catalog.model_table import ModelTable
from kvarn.catalog.models import ReadyModel, ServedModel
from kvarn.identity.scopes import check_adapter, check_model, may_see_adapter, may_use_model
from kvarn.wire.openai.errors import invalid_request

Kind = Literal["generate", "embed", "score"]

_OPERATIONS = {
    "generate": "chat and text completions",
    "embed": "embeddings, reranking and scoring",
    "score": "reranking and scoring",
}
_ABLE = {"generate": ("generate",), "embed": ("embed",), "score": ("score", "embed")}
"""Kinds of models by what they must be able to do."""


class Catalog:
    """Everything that requests may name: models, and routes, which stand for one of several."""

    def __init__(self, models: ModelTable, routes: ModelRoutes, held_requests: HeldRequests) -> None:
        self.models = models
        self.routes = routes
        self.held_requests = held_requests

    def find(self, record: RequestRecord, name: str) -> ServedModel:
        """The model that a request names, ready or not. Raises `ApiError`: 404 unknown, 403 out of the key's scope."""
        return self._find(record, name)[0]

    def ready(self, record: RequestRecord, name: str, kind: Kind | None = None) -> ReadyModel:
        """The model that a request names, ready to work. Raises `ApiError`: 404 unknown, 403 out of the key's scope,
        400 of another kind than `kind`, 503 not ready yet."""
        model, adapter = self._find(record, name)
        return _able(model.require_ready(adapter), name, kind)

    async def wait_for(self, record: RequestRecord, name: str, kind: Kind, priority: int = 0) -> ReadyModel:
        """Find a ready model as `ready` does; the request waits where the model's first replica is expected. Raises
        `ApiError` 400 too: the model takes the batch tier only. `priority`: the client's wish."""
        model, adapter = self._find(record, name)
        if model.config.spot == "batch" and not record.is_batch(priority):
            why = f"The model {name!r} runs on spot capacity, and takes requests of the batch tier only"
            raise invalid_request(f"{why}: send it in a batch (/v1/batches).", "model", "batch_tier_only")
        if not model.ready:
            model, adapter = await self.held_requests.until_ready(lambda: self._find(record, name))
            record.timeline.mark("held", {"cold": int(may_have_no_replica(model))})
        return _able(model.require_ready(adapter), name, kind)

    def _find(self, record: RequestRecord, name: str) -> tuple[ServedModel, str]:
        """The model that a name stands for, which the record notes, and the adapter where the name is one's. Of several
        versions one is drawn, once: a request that asks for the same again gets the same while it is ready."""
        principal, choice, name = record.principal, record.choice, self.routes.choose(record, name)
        if choice.found is not None and choice.found.name == name and choice.found.served.ready:
            _, model, adapter = choice.found
        elif (found := self.models.find_adapter(name)) is not None and may_see_adapter(principal, found[1]):
            model, adapter = found[0], found[1].name
        else:
            model = self.models.choose_version(name, visible=lambda served: may_use_model(principal, served))
            adapter = ""
        if choice.route is None or name not in choice.route.models:  # who may use a route may use its models by it
            check_model(principal, model.name)
            if adapter:
                check_adapter(principal, adapter)
        choice.name, choice.found = model.name, FoundModel(name, model, adapter)
        return model, adapter


def _able(model: ReadyModel, name: str, kind: Kind | None) -> ReadyModel:
    if kind is not None and model.card.kind not in _ABLE[kind]:
        does = _OPERATIONS.get(model.card.kind, model.card.kind)
        raise invalid_request(f"The model {name!r} does {does} only.", "model", "model_not_supported")
    return model
