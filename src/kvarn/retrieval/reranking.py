"""Reranking by served cross-encoders."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvarn.answers.context import ServingContext
from kvarn.answers.encoders.operation import start_rerank
from kvarn.config.retrieval import RetrievalConfig
from kvarn.identity.scopes import check_model, may_use_model
from kvarn.retrieval.served_model import Breakers, ModelsByKind, own_request
from kvarn.store.owner import Principal
from kvarn.text.tokenizer import Tokenizer
from kvarn.wire.openai.encoders import RerankRequest
from kvarn.wire.openai.errors import invalid_request

NONE = "none"
SERVERS_CHOICE = frozenset({"auto", "default-2024-11-15", "default-2024-08-21"})
"""OpenAI's names of rankers: here they are what the server has."""
_ENDPOINT = "/v1/rerank"
_SPECIAL_TOKENS = 8
"""Tokens around and between two texts, at most."""


class RerankerAwayError(Exception):
    """The reranker cannot answer now; the message says why."""


class Reranker:
    """The served models that rerank."""

    def __init__(self, serving: Callable[[], ServingContext], config: RetrievalConfig) -> None:
        self._serving = serving
        self._config = config
        self._kinds = ModelsByKind(serving)
        self._breakers = Breakers("reranker", RerankerAwayError)

    def choose(self, principal: Principal, ranker: str) -> str | None:
        """The model that a search is reranked with; None: it is not. Raises `ApiError`: 400, `ranker` names none; 403,
        one that the key may not use."""
        if ranker == NONE:
            return None
        if ranker in SERVERS_CHOICE:
            served = self._kinds.of("score")
            return self._config.reranker or (served[0] if len(served) == 1 else None)
        model = self._serving().models.named(ranker)
        if model is None:
            usable = [name for name in self._kinds.of("score") if may_use_model(principal, name)]
            have = ", ".join([NONE, *sorted(SERVERS_CHOICE), *usable])
            why = f"{ranker[:80]!r} is no ranker of this server, which has: {have}."
            raise invalid_request(why, "ranking_options.ranker")
        check_model(principal, model.name)
        return ranker

    async def score(self, principal: Principal, name: str, query: str, texts: Sequence[str]) -> list[float]:
        """Scores from 0 to 1 of texts for a query, in their order. Raises `RerankerAwayError`."""
        serving = self._serving()
        async with (
            self._breakers.asking(name, self._config.rerank_timeout_s),
            own_request(serving, principal, _ENDPOINT, deferred=False) as record,
        ):
            model = await serving.catalog.wait_for(record, name, "score")
            tokenizer, longest = model.text.tokenizer, model.card.max_context_length
            cut, left = await serving.text.run(
                principal.organization_id, len(query), lambda: _cut_query(query, tokenizer, longest)
            )
            request = RerankRequest(
                model=name, query=cut, documents=[text or " " for text in texts], max_tokens_per_doc=left
            )
            answer = await (await start_rerank(serving, record, request, show_documents=False))
        scores = [0.0] * len(texts)
        for each in answer.results:
            scores[each.index] = each.relevance_score
        return scores


def _cut_query(query: str, tokenizer: Tokenizer, longest: int) -> tuple[str, int]:
    """A query of at most half of what a model reads, and the tokens that are left for a text beside it."""
    while (size := len(tokenizer.encode(query, add_special_tokens=False))) > longest // 2:
        query = query[: len(query) // 2]
    return query, max(1, longest - size - _SPECIAL_TOKENS)
