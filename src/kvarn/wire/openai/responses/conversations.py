"""Conversations: `/v1/conversations`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from pydantic import Field

from kvarn.wire.openai.common import Metadata, RequestModel
from kvarn.wire.openai.responses.items import InputItem

MAX_NEW_ITEMS = 20
"""Items that one request may add."""

NewItems = Annotated[list[InputItem], Field(fail_fast=True, max_length=MAX_NEW_ITEMS)]


class CreateConversationRequest(RequestModel):
    """The body of a request for a new conversation."""

    items: NewItems | None = None
    metadata: Metadata | None = None


class UpdateConversationRequest(RequestModel):
    """The body of a request to change a conversation."""

    metadata: Metadata | None
    """Replaces what was there."""


class CreateItemsRequest(RequestModel):
    """The body of a request to add items to a conversation."""

    items: NewItems


class ConversationAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation."""

    id: str
    created_at: int
    metadata: dict[str, str]
    object: str = "conversation"
