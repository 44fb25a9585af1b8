"""Taking a batch, and telling what has become of it."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from kvarn.batches.endpoints import ENDPOINTS
from kvarn.identity.scopes import check_endpoint
from kvarn.responses.background_runs import ResponsesContext
from kvarn.store.errors import NotFoundError
from kvarn.store.models import Batch
from kvarn.store.owner import Principal
from kvarn.store.repositories.batches.batches import create_batch
from kvarn.store.repositories.files import find_file
from kvarn.wire.openai.batches import WINDOW_S, BatchObject, BatchRequest, RequestCounts
from kvarn.wire.openai.errors import ApiError, invalid_request

_WINDOWS = {seconds: window for window, seconds in WINDOW_S.items()}


async def start_batch(
    serving: ResponsesContext,
    principal: Principal,
    request: BatchRequest,
    *,
    id_prefix: str = "batch_",
    total: int = 0,
) -> Batch:
    """Check a request for a batch and take it. Its input is read later; `total` says how many requests that holds,
    where it is known."""
    if request.endpoint not in ENDPOINTS:
        why = f"Invalid value for 'endpoint': batches are run for {', '.join(ENDPOINTS)}."
        raise invalid_request(why, "endpoint", "unsupported_value")
    check_endpoint(principal, request.endpoint)
    try:
        file = await find_file(serving.store, principal.owner, request.input_file_id)
    except NotFoundError as error:
        raise ApiError(404, str(error), code="not_found", param="input_file_id") from None
    if file.purpose != "batch":
        why = f"The file {file.id} has the purpose {file.purpose!r}: upload the input with purpose 'batch'."
        raise invalid_request(why, "input_file_id")
    expiry = request.output_expires_after
    return await create_batch(
        serving.store,
        principal,
        endpoint=request.endpoint,
        input_file_id=file.id,
        window_s=WINDOW_S[request.completion_window],
        metadata=request.metadata,
        output_expires_after_s=expiry.seconds if expiry is not None else None,
        input_bytes=file.size,
        id_prefix=id_prefix,
        total=total,
    )


def describe_batch(batch: Batch) -> BatchObject:
    return BatchObject(
        id=batch.id,
        endpoint=batch.endpoint,
        input_file_id=batch.input_file_id,
        completion_window=_WINDOWS.get(batch.window_s, f"{batch.window_s}s"),
        status=batch.status,
        created_at=batch.created_at,
        expires_at=batch.expires_at,
        request_counts=RequestCounts(total=batch.total, completed=batch.completed, failed=batch.failed),
        usage=_usage(batch),
        metadata=batch.extra or None,
        model=batch.model or UNSET,
        errors={"object": "list", "data": batch.errors} if batch.errors else UNSET,
        output_file_id=batch.output_file_id or UNSET,
        error_file_id=batch.error_file_id or UNSET,
        **batch.times,
    )


def _usage(batch: Batch) -> dict[str, Any]:
    return {
        "input_tokens": batch.input_tokens,
        "input_tokens_details": {"cached_tokens": batch.cached_tokens},
        "output_tokens": batch.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": batch.input_tokens + batch.output_tokens,
    }
