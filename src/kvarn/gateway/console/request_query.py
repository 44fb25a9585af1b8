"""Query parameters of the lists of kept requests."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from kvarn.explain.explanation import CauseCode
from kvarn.gateway.console.viewer import Viewer
from kvarn.gateway.query import LATEST_S, QueryModel, Text
from kvarn.identity.scopes import insufficient_permissions
from kvarn.kept.packing import name_of_column
from kvarn.store.repositories.kept_requests import KeptFilter, KeptOrder, KeptPlace

_ANSWER_PREFIX = re.compile(r"^(chatcmpl-|cmpl-|msg_|resp_|rerank-|score-|pool-)(?=[0-9a-f]{6})")
"""Beginning of an answer's id that goes on with the id of its record, or with the beginning of that."""
_REQUEST_PREFIX = re.compile(r"^req-(?=[0-9a-f]{32}$)")
"""Beginning of the header `x-request-id`, where it is the server's own."""
_LARGEST = (1 << 63) - 1
_Seconds = Annotated[float, Field(ge=0, le=LATEST_S)]
_OUTCOMES = Literal["finished", "aborted", "refused", "failed"]
_REASONS = Literal["ordinary", "slow", "refused", "error"]


class RequestFilterQuery(QueryModel):
    """Restrictions of a list of requests."""

    id: Text | None = Field(None, description="Id of the request or of its answer, or the beginning of one.")
    q: Text | None = Field(None, description="A session, user, model, version, adapter, error code or key.")
    session: Text | None = Field(None, description="The client's session.")
    key: Text | None = Field(None, description="Id of an API key.")
    user: Text | None = Field(None, description="The client's own user, as requests name them.")
    model: Text | None = Field(None, description="The configured model.")
    version: Text | None = Field(None, description="Version of the model.")
    organization: Text | None = Field(None, description="Id of an organisation.")
    project: Text | None = Field(None, description="Id of a project.")
    batch: Text | None = Field(None, description="Id of a batch.")
    endpoint: Text | None = Field(None, description="Path, such as `/v1/chat/completions`.")
    status: str | None = Field(None, pattern=r"^([1-5]xx|[1-5]\d\d|0)$", description="`429`, or a class: `5xx`.")
    outcome: _OUTCOMES | None = Field(None, description="End of the request.")
    reason: _REASONS | None = Field(None, description="Why it is kept.")
    cause: CauseCode | None = Field(None, description="Why it took as long as it did: its largest cause.")
    since: _Seconds | None = Field(None, description="Begun at this time or later, in seconds since 1970.")
    until: _Seconds | None = Field(None, description="Begun before this time.")
    min_total: _Seconds | None = Field(None, description="Seconds that it took at least.")
    min_ttft: _Seconds | None = Field(None, description="Seconds to its first token at least.")
    order: KeptOrder = Field(KeptOrder.NEWEST, description="Which come first.")

    def filter_for(self, viewer: Viewer) -> KeptFilter:
        """Selection within what the viewer sees. Raises `ApiError` 403: it names what is not theirs."""
        if viewer.organization_id is not None and self.organization not in (None, viewer.organization_id):
            raise insufficient_permissions("role: platform administrator (admin of the default organization)")
        if viewer.project_id is not None and self.project not in (None, viewer.project_id):
            raise insufficient_permissions("role: admin")
        return KeptFilter(
            organization_id=self.organization or viewer.organization_id,
            project_id=self.project or viewer.project_id,
            id=None if self.id is None else of_record(self.id),
            text=_column(self.q),
            session=_column(self.session),
            key_id=self.key,
            end_user=_column(self.user),
            model=self.model,
            model_version=self.version,
            batch_id=self.batch,
            endpoint=self.endpoint,
            statuses=_statuses(self.status),
            outcome=self.outcome,
            reason=self.reason,
            cause=None if self.cause is None else self.cause.value,
            since_us=_microseconds(self.since),
            until_us=_microseconds(self.until),
            min_total_us=_microseconds(self.min_total),
            min_ttft_us=_microseconds(self.min_ttft),
        )


class RequestQuery(RequestFilterQuery):
    """A page of requests."""

    limit: int = Field(50, ge=1, le=200, description="Requests at most.")
    after: str | None = Field(None, pattern=r"^\d{1,19}\.\d{1,19}$", description="`next` of the page before.")

    @property
    def place(self) -> KeptPlace | None:
        """Place behind which the page begins."""
        if self.after is None:
            return None
        value, number = map(int, self.after.split("."))
        return KeptPlace(min(value, _LARGEST), min(number, _LARGEST))


def of_record(given: str) -> str:
    """The record's id, or its beginning, from the id of an answer; other ids are as they were."""
    return _ANSWER_PREFIX.sub("", given)


RecordId = Annotated[str, AfterValidator(lambda given: of_record(_REQUEST_PREFIX.sub("", given)))]
"""A request's own id, also within the id of its answer (`chatcmpl-…`) or in the header (`req-…`)."""


def _statuses(status: str | None) -> tuple[int, int] | None:
    if status is None:
        return None
    if status.endswith("xx"):
        return int(status[0]) * 100, int(status[0]) * 100 + 99
    return int(status), int(status)


def _microseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e6)


def _column(text: str | None) -> str | None:
    return None if text is None else name_of_column(text)
