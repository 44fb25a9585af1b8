"""Conversations and their items, responses, and stored chat completions."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from kvarn.store.models.base import Base, CountedOwned, ExactJson, Id, Name, Number, Seconds


class Conversation(CountedOwned, Base):
    """A list of items that grows with every turn."""

    __tablename__ = "conversations"
    noun = "conversation"
    __table_args__ = (
        Index("ix_conversations_project_id_created_at", "project_id", "created_at"),
        Index("ix_conversations_organization_id_changed_at", "organization_id", "changed_at"),
        Index("ix_conversations_organization_id_counted_bytes", "organization_id", "counted_bytes"),
    )

    created_at: Mapped[Seconds]
    changed_at: Mapped[Seconds] = mapped_column(index=True)
    extra: Mapped[dict[str, Any]] = mapped_column(ExactJson)
    num_items: Mapped[Number] = mapped_column(default=0)
    """Items ever added: the position of the next."""
    locked_by: Mapped[Id | None] = mapped_column(index=True)
    """The response that is being made in it: a conversation has one writer at a time."""
    locked_until: Mapped[Seconds | None]  # end of the lock, should its gateway have died


class ConversationItem(Base):
    """A message, a call or its result, in OpenAI's shape."""

    __tablename__ = "conversation_items"
    __table_args__ = (Index("ix_conversation_items_conversation_id_position", "conversation_id", "position"),)

    id: Mapped[Id] = mapped_column(primary_key=True)
    conversation_id: Mapped[Id] = mapped_column(ForeignKey("conversations.id", ondelete="CASCADE"), primary_key=True)
    position: Mapped[Number]
    created_at: Mapped[Seconds]
    item: Mapped[dict[str, Any]] = mapped_column(ExactJson)
    counted_bytes: Mapped[Number] = mapped_column(default=0)
    """Part of its conversation's bytes."""


class StoredResponse(CountedOwned, Base):
    """A response of `/v1/responses`, with what it was asked."""

    __tablename__ = "responses"
    noun = "response"
    __table_args__ = (
        Index("ix_responses_project_id_created_at", "project_id", "created_at"),
        Index("ix_responses_organization_id_created_at", "organization_id", "created_at"),
        Index("ix_responses_organization_id_counted_bytes", "organization_id", "counted_bytes"),
    )

    created_at: Mapped[Seconds] = mapped_column(index=True)
    status: Mapped[str] = mapped_column(String(16), index=True)
    background: Mapped[bool] = mapped_column(default=False)
    previous_response_id: Mapped[Id | None]
    conversation_id: Mapped[Id | None]
    input_items: Mapped[list[Any]] = mapped_column(ExactJson)
    """Items that this turn added, in OpenAI's shape."""
    body: Mapped[dict[str, Any]] = mapped_column(ExactJson)  # the response object, its output among it
    request: Mapped[dict[str, Any]] = mapped_column(ExactJson)
    """The request, for a background run that has to begin again."""
    cuts: Mapped[list[Any]] = mapped_column(ExactJson)
    """Lengths of the deltas of each item of the output, in characters and in tokens with log-probabilities: the same
    stream can be sent again."""
    attempts: Mapped[int] = mapped_column(default=0)  # number of times that a background run was begun
    leased_by: Mapped[Id | None]  # the gateway that works on it
    leased_until: Mapped[Seconds | None]


class StoredCompletion(CountedOwned, Base):
    """A chat completion that its client asked to store."""

    __tablename__ = "stored_completions"
    noun = "stored chat completion"
    __table_args__ = (
        Index("ix_stored_completions_project_id_created_at", "project_id", "created_at"),
        Index("ix_stored_completions_organization_id_created_at", "organization_id", "created_at"),
        Index("ix_stored_completions_organization_id_counted_bytes", "organization_id", "counted_bytes"),
    )

    created_at: Mapped[Seconds] = mapped_column(index=True)
    model: Mapped[Name]
    extra: Mapped[dict[str, Any]]
    messages: Mapped[list[Any]] = mapped_column(ExactJson)
    body: Mapped[dict[str, Any]] = mapped_column(ExactJson)
