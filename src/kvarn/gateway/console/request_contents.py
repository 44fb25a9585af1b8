"""Prompt and answer of a kept request, as far as the project or the client had them kept elsewhere."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from kvarn.gateway.console.viewer import Viewer
from kvarn.gateway.dependencies import actor_of
from kvarn.gateway.state import Gateway
from kvarn.identity.scopes import insufficient_permissions
from kvarn.responses.shown import shown_items
from kvarn.safety.errors import SafetyError
from kvarn.store.models import KeptRequest, StoredCompletion, StoredResponse
from kvarn.store.owner import Owner, Role
from kvarn.store.repositories.prompt_samples import sample_of
from kvarn.store.repositories.queries import find_owned_or_none
from kvarn.store.repositories.tenants.audited_changes import audited_change
from kvarn.wire.openai.errors import ApiError
from kvarn.wire.openai.responses.hosted import ALL_RESULTS


class RequestContents(Struct, kw_only=True):
    """Question and answer; null: it is not kept."""

    prompt: Any = None
    answer: Any = None
    is_whole: bool = True
    """Whether the prompt is all that the model was given; false for a response that goes on from others."""
    source: str = ""
    """`stored` (the client asked for it), `sample` (the project logs prompts), or empty."""


async def read_contents(gateway: Gateway, viewer: Viewer, row: KeptRequest) -> RequestContents:
    """Contents of a request that the viewer may see: those of their own organisation. Raises `ApiError`: 403, it is
    another's, or the key is a program's; 409, a sealed prompt cannot be opened here."""
    if viewer.principal.organization_id != row.organization_id:
        raise insufficient_permissions("a key of the organization whose request it is")
    if viewer.principal.role is Role.SERVICE:
        raise insufficient_permissions("role: member")
    owner = Owner(row.organization_id, row.project_id)
    async with viewer.store.reading() as session:
        completion = await find_owned_or_none(session, owner, StoredCompletion, f"chatcmpl-{row.id}")
        response = await find_owned_or_none(session, owner, StoredResponse, f"resp_{row.id}")
        sample = await sample_of(session, owner, row.id)
    if completion is not None:
        await _note_read(viewer, row)
        return RequestContents(prompt=completion.messages, answer=completion.body.get("choices"), source="stored")
    if response is not None:
        await _note_read(viewer, row)
        instructions = response.body.get("instructions")
        first = [{"type": "message", "role": "system", "content": instructions}] if instructions else []
        return RequestContents(
            prompt=[*first, *shown_items(response.input_items, ALL_RESULTS)],
            answer=shown_items(response.body.get("output", ()), ALL_RESULTS),
            is_whole=response.previous_response_id is None and response.conversation_id is None,
            source="stored",
        )
    if sample is None:
        return RequestContents()
    asked = msgspec.json.decode(await open_sealed(gateway, sample.sealed), type=dict[str, Any])
    answer = None if sample.answer is None else (await open_sealed(gateway, sample.answer)).decode()
    await _note_read(viewer, row)
    return RequestContents(prompt=asked.get("messages", asked.get("prompt")), answer=answer, source="sample")


async def _note_read(viewer: Viewer, row: KeptRequest) -> None:
    async with audited_change(viewer.store, actor_of(viewer.principal)) as change:
        data = {"prompts": 1, "request": row.id}
        change.record("prompts.read", row.organization_id, row.project_id, project_id=row.project_id, data=data)


async def open_sealed(gateway: Gateway, sealed: bytes) -> bytes:
    """A sample's prompt or answer. Raises `ApiError`: 409, it cannot be opened here."""
    try:
        return await gateway.moderation.prompts.open(sealed)
    except SafetyError as error:
        raise ApiError(409, f"The sample cannot be opened: {error}.", code="prompt_sealed") from None
