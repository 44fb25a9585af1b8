"""Vector stores: `/v1/vector_stores`, their files, batches of files and searches."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from kvarn.wire.openai.common import DefaultsModel, Metadata, RequestModel, disagreement, ignored, validation_error

DEFAULT_MAX_TOKENS, DEFAULT_OVERLAP_TOKENS = 800, 400
MAX_BATCH = 2000
"""Files that one request puts into a store."""
MAX_RESULTS = 50
_MAX_ATTRIBUTES, _MAX_READERS = 16, 100
_ROLES = ("admin", "member", "service")
_MAX_FILTERS, _MAX_FILTER_DEPTH, _MAX_VALUES = 64, 5, 100
_MAX_QUERIES, _MAX_QUERY_CHARS = 16, 4096

FileStatus = Literal["in_progress", "completed", "failed", "cancelled"]


def _check_attributes_size(value: object) -> object:
    if isinstance(value, dict) and len(value) > _MAX_ATTRIBUTES:
        raise validation_error("too_long", f"may have at most {_MAX_ATTRIBUTES} entries, not {len(value)}")
    return value


AttributeText = Annotated[str, Field(max_length=512)]
Attributes = Annotated[
    dict[Annotated[str, Field(max_length=64)], bool | int | float | AttributeText],
    BeforeValidator(_check_attributes_size),
]


def _check_role(reader: str) -> str:
    # A role that nobody has would hide the file from everybody.
    if reader.startswith("role:") and reader.removeprefix("role:") not in _ROLES:
        raise validation_error("role", f"the roles are {', '.join(_ROLES)}")
    return reader


Reader = Annotated[str, Field(min_length=1, max_length=256), AfterValidator(_check_role)]
Readers = Annotated[list[Reader], Field(max_length=_MAX_READERS)]
"""Ids of users, or `role:` and a role, who find a file; Kvarn's own field."""
FileIds = Annotated[list[str], Field(max_length=MAX_BATCH, fail_fast=True)]


class ExpiresAfter(RequestModel):
    anchor: Literal["last_active_at"]
    days: int = Field(ge=1, le=365)


class StaticSizes(RequestModel):
    """Sizes of passages, in tokens of the served model."""

    max_chunk_size_tokens: int = Field(ge=100, le=4096)
    chunk_overlap_tokens: int = Field(ge=0)

    @model_validator(mode="after")
    def _overlap_is_small(self) -> StaticSizes:
        if self.chunk_overlap_tokens > self.max_chunk_size_tokens // 2:
            raise disagreement("'chunk_overlap_tokens' may be at most half of 'max_chunk_size_tokens'.", "static")
        return self


class AutoChunking(RequestModel):
    type: Literal["auto"]


class StaticChunking(RequestModel):
    type: Literal["static"]
    static: StaticSizes


ChunkingStrategy = Annotated[AutoChunking | StaticChunking, Field(discriminator="type")]


class FileToAdd(DefaultsModel):
    """The body that puts a file into a vector store."""

    file_id: str
    attributes: Attributes | None = None
    chunking_strategy: ChunkingStrategy | None = None
    readers: Readers | None = None


class CreateVectorStoreRequest(DefaultsModel):
    name: str = Field("", max_length=256)
    description: str = Field("", max_length=512)
    file_ids: Annotated[list[str], Field(max_length=500, fail_fast=True)] | None = None
    chunking_strategy: ChunkingStrategy | None = None
    expires_after: ExpiresAfter | None = None
    metadata: Metadata | None = None
    embedding_model: str | None = Field(None, min_length=1, max_length=256)  # ours; default: the server's


class UpdateVectorStoreRequest(RequestModel):
    """Changes of a vector store: what is named is changed, null takes away."""

    name: str | None = Field(None, max_length=256)
    expires_after: ExpiresAfter | None = None
    metadata: Metadata | None = None


class UpdateFileRequest(RequestModel):
    """Changes of a file in a vector store. One of them must be there."""

    attributes: Attributes | None = None
    readers: Readers | None = None

    @model_validator(mode="after")
    def _changes_something(self) -> UpdateFileRequest:
        if not self.model_fields_set:
            raise disagreement("Missing required parameter: attributes", "attributes")
        return self


class CreateFileBatchRequest(DefaultsModel):
    """The body that puts files into a vector store: `file_ids`, with what all have in common, or `files`."""

    file_ids: FileIds | None = None
    files: Annotated[list[FileToAdd], Field(max_length=MAX_BATCH, fail_fast=True)] | None = None
    attributes: Attributes | None = None
    chunking_strategy: ChunkingStrategy | None = None
    readers: Readers | None = None

    @model_validator(mode="after")
    def _names_files_once(self) -> CreateFileBatchRequest:
        if bool(self.file_ids) == bool(self.files):
            raise disagreement("Name files by 'file_ids' or by 'files', and not by both.", "file_ids")
        return self

    @property
    def all_files(self) -> list[FileToAdd]:
        """Every file with what holds for it."""
        if self.files:
            return self.files
        common = {"attributes": self.attributes, "chunking_strategy": self.chunking_strategy, "readers": self.readers}
        return [FileToAdd.model_validate({"file_id": file_id, **common}) for file_id in self.file_ids or ()]


FilterValue = bool | int | float | AttributeText


class ComparisonFilter(RequestModel):
    type: Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"]
    key: str = Field(max_length=64)
    value: FilterValue | Annotated[list[FilterValue], Field(max_length=_MAX_VALUES, fail_fast=True)]

    @model_validator(mode="after")
    def _takes_a_list(self) -> ComparisonFilter:
        if isinstance(self.value, list) != (self.type in ("in", "nin")):
            raise disagreement("'value' is a list for 'in' and 'nin', and one value for all others.", "value")
        return self


class CompoundFilter(RequestModel):
    type: Literal["and", "or"]
    filters: Annotated[list[Filter], Field(min_length=1, max_length=_MAX_FILTERS, fail_fast=True)]


Filter = Annotated[ComparisonFilter | CompoundFilter, Field(discriminator="type")]
CompoundFilter.model_rebuild()


def _check_filter_size(value: Any) -> Any:
    """Asked before pydantic follows the nesting."""
    level, count = [value], 0
    for _ in range(_MAX_FILTER_DEPTH):
        count += len(level)
        nested = [each["filters"] for each in level if isinstance(each, dict) and isinstance(each.get("filters"), list)]
        level = [each for filters in nested for each in filters]
        if count + len(level) > _MAX_FILTERS:
            raise validation_error("too_long", f"may hold at most {_MAX_FILTERS} filters")
        if not level:
            return value
    raise validation_error("too_deep", f"may be nested at most {_MAX_FILTER_DEPTH} levels deep")


BoundedFilter = Annotated[Filter, BeforeValidator(_check_filter_size)]
"""A filter over attributes, whose size is bounded."""


class RankingOptions(DefaultsModel):
    ranker: str = Field("auto", min_length=1, max_length=256)
    """`auto`, `none`, `default-2024-11-15`, or the name of a served reranker."""
    score_threshold: float = Field(0.0, ge=0, le=1)


Query = Annotated[str, Field(min_length=1, max_length=_MAX_QUERY_CHARS)]


class SearchRequest(DefaultsModel):
    query: Query | Annotated[list[Query], Field(min_length=1, max_length=_MAX_QUERIES, fail_fast=True)]
    filters: BoundedFilter | None = None
    max_num_results: int = Field(10, ge=1, le=MAX_RESULTS)
    ranking_options: RankingOptions = RankingOptions()
    rewrite_query: Annotated[bool, ignored("ignored 'rewrite_query', queries are searched as they are", False)] = False
    explain: bool = False  # ours: tell each result's place and scores, and what was left out

    @property
    def queries(self) -> list[str]:
        return [self.query] if isinstance(self.query, str) else self.query


class FileCounts(msgspec.Struct, frozen=True, kw_only=True):
    in_progress: int
    completed: int
    failed: int
    cancelled: int
    total: int


class ExpiryObject(msgspec.Struct, frozen=True, kw_only=True):
    days: int
    anchor: str = "last_active_at"


class VectorStoreObject(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    created_at: int
    name: str
    description: str
    usage_bytes: int
    file_counts: FileCounts
    status: str
    last_active_at: int
    metadata: dict[str, str]
    expires_at: int | None
    passages: int  # ours, as `embedded_by` and `embedding_model`
    embedded_by: str | None
    """Model and version whose vectors are searched; null: there are none, words alone are compared."""
    expires_after: ExpiryObject | UnsetType = UNSET
    embedding_model: str | UnsetType = UNSET
    object: str = "vector_store"


class LastError(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    message: str


class StaticSizesObject(msgspec.Struct, frozen=True, kw_only=True):
    max_chunk_size_tokens: int
    chunk_overlap_tokens: int


class StaticChunkingObject(msgspec.Struct, frozen=True, kw_only=True):
    static: StaticSizesObject
    type: str = "static"


class VectorStoreFileObject(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    filename: str  # ours, as `readers`, `progress` and `passages`
    created_at: int
    vector_store_id: str
    usage_bytes: int
    status: str
    last_error: LastError | None
    chunking_strategy: StaticChunkingObject
    attributes: dict[str, str | float | bool]
    readers: list[str] | UnsetType = UNSET
    progress: float | UnsetType = UNSET  # from 0 to 1, while it is in progress
    passages: int | UnsetType = UNSET
    object: str = "vector_store.file"


class FileBatchObject(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    created_at: int
    vector_store_id: str
    status: str
    file_counts: FileCounts
    object: str = "vector_store.files_batch"


class TextContent(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    type: str = "text"


class FileContentPage(msgspec.Struct, frozen=True, kw_only=True):
    data: list[TextContent]
    object: str = "vector_store.file_content.page"
    has_more: bool = False
    next_page: str | None = None


class ScoresObject(msgspec.Struct, frozen=True, kw_only=True):
    """Scores of a passage in the parts of a search; null: the part did not rank it."""

    words: float | None
    """BM25."""
    vectors: float | None
    """Cosine."""
    fusion: float | None
    reranker: float | None


class PlaceObject(msgspec.Struct, frozen=True, kw_only=True):
    """Place of a passage in the text of its file, in characters."""

    start: int
    end: int
    page: int | None
    section: str
    """Headings above it, joined by ` > `."""


class SearchHit(msgspec.Struct, frozen=True, kw_only=True):
    file_id: str
    filename: str
    score: float
    attributes: dict[str, str | float | bool]
    content: list[TextContent]
    scores: ScoresObject | UnsetType = UNSET
    place: PlaceObject | UnsetType = UNSET


class SearchResultsPage(msgspec.Struct, frozen=True, kw_only=True):
    search_query: list[str]
    data: list[SearchHit]
    object: str = "vector_store.search_results.page"
    has_more: bool = False
    next_page: str | None = None
    degraded: list[str] | UnsetType = UNSET
    """Parts of the search that were left out, in words."""
