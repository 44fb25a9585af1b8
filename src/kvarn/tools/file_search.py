"""Tools of type `file_search`: the model searches the vector stores that a request names, and cites what it finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from kvarn.answers.chat.tool_calls import arguments_object
from kvarn.retrieval.context import build_context
from kvarn.retrieval.stores import Retrieval
from kvarn.store.errors import NotFoundError
from kvarn.store.owner import Owner
from kvarn.tools.execution import failed
from kvarn.tools.items import queries_of
from kvarn.tools.types import OpenedTools, Quote, ToolCall, ToolContext, ToolDefinition, ToolResult
from kvarn.wire.openai.common import LenientModel
from kvarn.wire.openai.errors import ApiError
from kvarn.wire.openai.parse import validate
from kvarn.wire.openai.vector_stores import BoundedFilter, RankingOptions

_MAX_QUERIES = 5
_MAX_QUERY_CHARS = 4096
_BYTES_PER_TOKEN = 4
"""The budget of a prompt's quotes is bytes: so long is a token of most texts, and no served tokenizer is needed."""
_DEFINITION = ToolDefinition(
    "file_search",
    "Search the files that were given for this conversation. Ask in the words in which the answer would be written; "
    "several queries are searched at once. Cite what you use.",
    {
        "type": "object",
        "properties": {
            "queries": {
                "type": "array",
                "items": {"type": "string", "maxLength": 200},
                "minItems": 1,
                "maxItems": _MAX_QUERIES,
                "description": "Texts to search for.",
            }
        },
        "required": ["queries"],
        "additionalProperties": False,
    },
)


class FileSearchTool(LenientModel):
    type: Literal["file_search"]
    vector_store_ids: Annotated[list[str], Field(min_length=1, max_length=32, fail_fast=True)]
    filters: BoundedFilter | None = None
    max_num_results: int = Field(20, ge=1, le=50)
    ranking_options: RankingOptions = RankingOptions()


@dataclass(frozen=True, slots=True)
class FileSearchProvider:
    retrieval: Retrieval

    async def open(self, context: ToolContext, asked: Mapping[str, Any]) -> OpenedTools:
        """The search in the stores that a request names. Raises `ApiError`: 404, one is not there."""
        entry = validate(FileSearchTool, dict(asked), context.record.reply.warnings)
        try:
            await self.retrieval.check(context.record.principal.owner, entry.vector_store_ids)
        except NotFoundError as error:
            raise ApiError(404, str(error), code="vector_store_not_found", param="tools") from None
        return OpenedTools([FileSearch(self.retrieval, entry)])

    async def problem(self, owner: Owner) -> str | None:
        return None


@dataclass(frozen=True, slots=True)
class FileSearch:
    retrieval: Retrieval
    entry: FileSearchTool

    definition = _DEFINITION
    item_type = "file_search_call"
    needs_approval = False

    @property
    def item_fields(self) -> Mapping[str, Any]:
        return {}

    async def call(self, context: ToolContext, call: ToolCall) -> ToolResult:
        entry = self.entry
        queries = [each[:_MAX_QUERY_CHARS] for each in queries_of(arguments_object(call.arguments)) if each.strip()]
        if not queries:
            return failed("There was no query: give 'queries', a list of texts.")
        found = await self.retrieval.search(
            context.record.principal,
            entry.vector_store_ids,
            queries[:_MAX_QUERIES],
            filters=None if entry.filters is None else entry.filters.model_dump(),
            max_results=entry.max_num_results,
            score_threshold=entry.ranking_options.score_threshold,
            ranker=entry.ranking_options.ranker,
            for_prompt=True,
        )
        quoted = build_context(found.hits, context.max_result_bytes // _BYTES_PER_TOKEN, _tokens)
        results = [
            {
                "file_id": hit.file_id,
                "filename": hit.filename,
                "score": hit.score,
                "attributes": dict(hit.attributes),
                "text": hit.chunk.text,
            }
            for hit in found.hits
        ]
        return ToolResult(
            "" if quoted.spans else "Nothing was found.",
            item={"results": results},
            quotes=[Quote(each.file_id, each.filename, each.start, each.end, each.text) for each in quoted.spans],
            metadata=found.degraded,
        )


def _tokens(text: str) -> int:
    return -(-len(text.encode("utf-8", "surrogatepass")) // _BYTES_PER_TOKEN)
