"""Evaluation sets and runs, as clients send them: `/v1/evaluations`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType
from pydantic import AfterValidator, Field, model_validator

from kvarn.wire.openai.common import RequestModel, check_printable, disagreement, validation_error

MAX_ITEMS = 1000
"""Items of a set at most."""
MAX_SET_BYTES = 4 * 1024 * 1024
"""Bytes of JSON that the items of one version of a set may have together."""

ShortText = Annotated[str, Field(min_length=1, max_length=512), AfterValidator(check_printable)]
LongText = Annotated[str, Field(min_length=1, max_length=16 * 1024)]
ModelName = Annotated[str, Field(min_length=1, max_length=256), AfterValidator(check_printable)]
SET_PREFIX = "evalset_"


def _check_no_id(value: str) -> str:
    if value.startswith(SET_PREFIX):
        raise validation_error("invalid_name", f"a name may not begin as ids do, with {SET_PREFIX!r}")
    return value


SetName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"), AfterValidator(_check_no_id)]


class ExactCheck(RequestModel):
    """The whole answer is the expected text; upper case, white space and forms of Unicode do not matter."""

    type: Literal["exact"]
    text: LongText | None = None
    """Default: the item's `expected`."""


class ContainsCheck(RequestModel):
    """The answer contains a text; compared as by `exact`."""

    type: Literal["contains"]
    text: LongText | None = None
    """Default: the item's `expected`."""


class RegexCheck(RequestModel):
    """A regular expression of RE2 is found in the answer."""

    type: Literal["regex"]
    pattern: Annotated[str, Field(min_length=1, max_length=1024)]


class JsonFieldsCheck(RequestModel):
    """The answer is JSON that has these values; the score is the share of them that it has."""

    type: Literal["json_fields"]
    fields: Annotated[dict[str, Any], Field(min_length=1, max_length=64)]
    """Values by path, such as `order.items.0.id`."""


class JsonSchemaCheck(RequestModel):
    """The answer is JSON, valid by a schema."""

    type: Literal["json_schema"]
    json_schema: dict[str, Any] = Field(alias="schema")


class JudgeCheck(RequestModel):
    """A model grades the answer by a rubric, from 1 to 5; the score is 0 to 1."""

    type: Literal["judge"]
    rubric: LongText
    model: ModelName | None = None
    """Default: the run's `judge_model`."""
    pass_from: int = Field(4, ge=1, le=5)


Check = Annotated[
    ExactCheck | ContainsCheck | RegexCheck | JsonFieldsCheck | JsonSchemaCheck | JudgeCheck,
    Field(discriminator="type"),
]


class EvaluationItem(RequestModel):
    """A question with what is expected of its answer. Without `checks`, the answer has to be `expected`."""

    id: Annotated[str, Field(min_length=1, max_length=128), AfterValidator(check_printable)] | None = None
    messages: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=256)] | None = None
    prompt: Annotated[str, Field(min_length=1)] | None = None
    expected: LongText | None = None
    checks: list[Check] = Field(default_factory=list, max_length=8)

    @model_validator(mode="after")
    def _is_whole(self) -> EvaluationItem:
        if (self.messages is None) == (self.prompt is None):
            raise disagreement("An item has either 'messages' or 'prompt'.", "messages")
        if self.expected is None and not self.checks:
            raise disagreement("An item needs 'expected', or 'checks'.", "expected")
        if self.expected is None:
            for check in self.checks:
                if isinstance(check, ExactCheck | ContainsCheck) and check.text is None:
                    raise disagreement(f"The check {check.type!r} needs 'text', or the item 'expected'.", "expected")
        return self

    @property
    def graded_by(self) -> list[Check]:
        return self.checks or [ExactCheck(type="exact")]


Items = Annotated[list[EvaluationItem], Field(min_length=1, max_length=MAX_ITEMS)]


class CreateSetRequest(RequestModel):
    name: SetName
    description: ShortText | None = None
    items: Items
    note: ShortText | None = None


class UpdateSetRequest(RequestModel):
    """Fields that are left out stay."""

    description: ShortText | None = None
    baseline_run_id: Annotated[str, Field(max_length=64)] | None = None
    """Run that others are measured by; null: that of the model's version before."""


class AddItemsRequest(RequestModel):
    """A new version of a set: other items, or further ones."""

    items: Items
    append: bool = False
    note: ShortText | None = None


class RunRequest(RequestModel):
    model: ModelName
    set_version: int | None = Field(None, ge=1, le=2**31 - 1)
    """Default: the newest."""
    judge_model: ModelName | None = None
    max_tokens: int | None = Field(None, ge=1, le=32_768)
    """Default: as long as the model's context allows."""
    temperature: float = Field(0.0, ge=0, le=2)
    seed: int = Field(0, ge=0, le=2**31 - 1)


class SetObject(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "evaluation"
    name: str
    description: str
    created_at: int
    changed_at: int
    version: int  # the newest
    num_items: int
    baseline_run_id: str | None


class VersionObject(msgspec.Struct, frozen=True, kw_only=True):
    object: str = "evaluation.version"
    set_id: str
    version: int
    created_at: int
    key_id: str | None  # the key that made it
    note: str
    num_items: int
    items: list[dict[str, Any]] | UnsetType = UNSET


class VersionList(msgspec.Struct, frozen=True, kw_only=True):
    object: str = "list"
    data: list[VersionObject]
    has_more: bool


class RunObject(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "evaluation.run"
    set_id: str
    set_name: str
    set_version: int
    model: str  # as it was asked for
    answered_by: str  # name of the model; empty before the first answer
    version: str  # its version; `several` where several answered
    status: Literal["queued", "in_progress", "completed", "failed", "cancelled"]
    created_at: int
    started_at: int | None
    finished_at: int | None
    total: int
    answered: int
    passed: int
    errors: int
    score: float | None
    problem: str | None
    settings: dict[str, Any]


class ResultObject(msgspec.Struct, frozen=True, kw_only=True):
    object: str = "evaluation.result"
    item: int  # place in the set's version, from 0
    score: float
    passed: bool
    output: str  # its beginning
    grades: list[dict[str, Any]]
    error: str | None
    request_id: str
    output_tokens: int


class ResultList(msgspec.Struct, frozen=True, kw_only=True):
    object: str = "list"
    data: list[ResultObject]
    has_more: bool
