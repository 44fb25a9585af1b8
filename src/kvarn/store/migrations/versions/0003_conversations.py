"""Conversations, responses and stored chat completions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from kvarn.store.models.base import ExactJson, Json

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "conversations",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("organization_id", sa.String(length=64), nullable=False),
        sa.Column("project_id", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("changed_at", sa.BigInteger(), nullable=False),
        sa.Column("extra", ExactJson, nullable=False),
        sa.Column("num_items", sa.BigInteger(), nullable=False),
        sa.Column("counted_bytes", sa.BigInteger(), nullable=False),
        sa.Column("locked_by", sa.String(length=64), nullable=True),
        sa.Column("locked_until", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["organization_id"], ["organizations.id"], name=op.f("fk_conversations_organization_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_conversations_project_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_conversations")),
    )
    op.create_index(op.f("ix_conversations_changed_at"), "conversations", ["changed_at"], unique=False)
    op.create_index(op.f("ix_conversations_locked_by"), "conversations", ["locked_by"], unique=False)
    op.create_index(
        "ix_conversations_organization_id_changed_at", "conversations", ["organization_id", "changed_at"], unique=False
    )
    op.create_index(
        "ix_conversations_project_id_created_at", "conversations", ["project_id", "created_at"], unique=False
    )

    op.create_table(
        "responses",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("organization_id", sa.String(length=64), nullable=False),
        sa.Column("project_id", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("background", sa.Boolean(), nullable=False),
        sa.Column("previous_response_id", sa.String(length=64), nullable=True),
        sa.Column("conversation_id", sa.String(length=64), nullable=True),
        sa.Column("input_items", ExactJson, nullable=False),
        sa.Column("body", ExactJson, nullable=False),
        sa.Column("request", ExactJson, nullable=False),
        sa.Column("cuts", ExactJson, nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("leased_by", sa.String(length=64), nullable=True),
        sa.Column("leased_until", sa.BigInteger(), nullable=True),
        sa.Column("counted_bytes", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["organization_id"], ["organizations.id"], name=op.f("fk_responses_organization_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_responses_project_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_responses")),
    )
    op.create_index(op.f("ix_responses_created_at"), "responses", ["created_at"], unique=False)
    op.create_index(
        "ix_responses_organization_id_created_at", "responses", ["organization_id", "created_at"], unique=False
    )
    op.create_index("ix_responses_project_id_created_at", "responses", ["project_id", "created_at"], unique=False)
    op.create_index(op.f("ix_responses_status"), "responses", ["status"], unique=False)

    op.create_table(
        "stored_completions",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("organization_id", sa.String(length=64), nullable=False),
        sa.Column("project_id", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("model", sa.String(length=256), nullable=False),
        sa.Column("extra", Json, nullable=False),
        sa.Column("messages", ExactJson, nullable=False),
        sa.Column("body", ExactJson, nullable=False),
        sa.Column("counted_bytes", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["organization_id"],
            ["organizations.id"],
            name=op.f("fk_stored_completions_organization_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_stored_completions_project_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_stored_completions")),
    )
    op.create_index(op.f("ix_stored_completions_created_at"), "stored_completions", ["created_at"], unique=False)
    op.create_index(
        "ix_stored_completions_organization_id_created_at",
        "stored_completions",
        ["organization_id", "created_at"],
        unique=False,
    )
    op.create_index(
        "ix_stored_completions_project_id_created_at", "stored_completions", ["project_id", "created_at"], unique=False
    )

    op.create_table(
        "conversation_items",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("conversation_id", sa.String(length=64), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("item", ExactJson, nullable=False),
        sa.Column("counted_bytes", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["conversation_id"],
            ["conversations.id"],
            name=op.f("fk_conversation_items_conversation_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", "conversation_id", name=op.f("pk_conversation_items")),
    )
    op.create_index(
        "ix_conversation_items_conversation_id_position",
        "conversation_items",
        ["conversation_id", "position"],
        unique=False,
    )


def downgrade() -> None:
    """Undo."""
    op.drop_index("ix_conversation_items_conversation_id_position", "conversation_items")

    op.drop_table("conversation_items")
    op.drop_index("ix_stored_completions_project_id_created_at", "stored_completions")
    op.drop_index("ix_stored_completions_organization_id_created_at", "stored_completions")
    op.drop_index(op.f("ix_stored_completions_created_at"), "stored_completions")

    op.drop_table("stored_completions")
    op.drop_index(op.f("ix_responses_status"), "responses")
    op.drop_index("ix_responses_project_id_created_at", "responses")
    op.drop_index("ix_responses_organization_id_created_at", "responses")
    op.drop_index(op.f("ix_responses_created_at"), "responses")

    op.drop_table("responses")
    op.drop_index("ix_conversations_project_id_created_at", "conversations")
    op.drop_index("ix_conversations_organization_id_changed_at", "conversations")
    op.drop_index(op.f("ix_conversations_locked_by"), "conversations")
    op.drop_index(op.f("ix_conversations_changed_at"), "conversations")

    op.drop_table("conversations")
