"""Organisations, projects, users, keys, limits, audit log."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from kvarn.store.models.base import Json

revision = "0001"
down_revision: str | None = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "act_numbers",
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_act_numbers")),
    )
    op.create_table(
        "audit_log",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("organization_id", sa.String(length=64), nullable=False),
        sa.Column("effective_at", sa.BigInteger(), nullable=False),
        sa.Column("type", sa.String(length=64), nullable=False),
        sa.Column("actor_key_id", sa.String(length=64), nullable=True),
        sa.Column("actor", sa.String(length=256), nullable=False),
        sa.Column("actor_organization_id", sa.String(length=64), nullable=True),
        sa.Column("actor_user_id", sa.String(length=64), nullable=True),
        sa.Column("actor_email", sa.String(length=320), nullable=True),
        sa.Column("object_id", sa.String(length=64), nullable=False),
        sa.Column("project_id", sa.String(length=64), nullable=True),
        sa.Column("detail", Json, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_log")),
    )
    op.create_index("ix_audit_log_organization_id_at", "audit_log", ["organization_id", "effective_at"], unique=False)

    op.create_table(
        "organizations",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("archived_at", sa.BigInteger(), nullable=True),
        sa.Column("weight", sa.Double(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("cache_salt", sa.String(length=64), nullable=False),
        sa.Column("retention_days", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_organizations")),
    )
    revisions = op.create_table(
        "revisions",
        sa.Column("holder", sa.String(length=64), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("holder", name=op.f("pk_revisions")),
    )
    op.create_index(op.f("ix_revisions_number"), "revisions", ["number"], unique=False)
    op.bulk_insert(revisions, [{"holder": "newest", "number": 0}])

    op.create_table(
        "projects",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("organization_id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("archived_at", sa.BigInteger(), nullable=True),
        sa.Column("is_default", sa.Boolean(), nullable=False),
        sa.Column("log_prompts", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["organization_id"], ["organizations.id"], name=op.f("fk_projects_organization_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_projects")),
    )
    op.create_index(op.f("ix_projects_organization_id"), "projects", ["organization_id"], unique=False)

    op.create_table(
        "rate_limits",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("organization_id", sa.String(length=64), nullable=False),
        sa.Column("holder_id", sa.String(length=64), nullable=False),
        sa.Column("model", sa.String(length=256), nullable=False),
        sa.Column("requests_per_minute", sa.BigInteger(), nullable=True),
        sa.Column("tokens_per_minute", sa.BigInteger(), nullable=True),
        sa.Column("concurrency", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["organization_id"], ["organizations.id"], name=op.f("fk_rate_limits_organization_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rate_limits")),
        sa.UniqueConstraint("holder_id", "model", name=op.f("uq_rate_limits_holder_id_model")),
    )
    op.create_index(op.f("ix_rate_limits_organization_id"), "rate_limits", ["organization_id"], unique=False)

    op.create_table(
        "stored_bytes",
        sa.Column("organization_id", sa.String(length=64), nullable=False),
        sa.Column("part", sa.Integer(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["organization_id"], ["organizations.id"], name=op.f("fk_stored_bytes_organization_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("organization_id", "part", name=op.f("pk_stored_bytes")),
    )
    op.create_table(
        "users",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("organization_id", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.Column("email", sa.String(length=320), nullable=True),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["organization_id"], ["organizations.id"], name=op.f("fk_users_organization_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_users")),
        sa.UniqueConstraint("organization_id", "email", name=op.f("uq_users_organization_id_email")),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("organization_id", sa.String(length=64), nullable=False),
        sa.Column("project_id", sa.String(length=64), nullable=False),
        sa.Column("user_id", sa.String(length=64), nullable=True),
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.Column("lookup", sa.String(length=32), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("redacted", sa.String(length=32), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("scopes", Json, nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.Column("last_used_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["organization_id"], ["organizations.id"], name=op.f("fk_api_keys_organization_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_api_keys_project_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_api_keys_user_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("lookup", name=op.f("uq_api_keys_lookup")),
    )
    op.create_index(op.f("ix_api_keys_organization_id"), "api_keys", ["organization_id"], unique=False)
    op.create_index(op.f("ix_api_keys_project_id"), "api_keys", ["project_id"], unique=False)
    op.create_index(op.f("ix_api_keys_user_id"), "api_keys", ["user_id"], unique=False)

    op.create_table(
        "project_members",
        sa.Column("project_id", sa.String(length=64), nullable=False),
        sa.Column("user_id", sa.String(length=64), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_project_members_project_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_project_members_user_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("project_id", "user_id", name=op.f("pk_project_members")),
    )
    op.create_index(op.f("ix_project_members_user_id"), "project_members", ["user_id"], unique=False)

    op.create_table(
        "prompt_samples",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("organization_id", sa.String(length=64), nullable=False),
        sa.Column("project_id", sa.String(length=64), nullable=False),
        sa.Column("request_id", sa.String(length=128), nullable=False),
        sa.Column("model", sa.String(length=256), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.Column("counted_bytes", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["organization_id"],
            ["organizations.id"],
            name=op.f("fk_prompt_samples_organization_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_prompt_samples_project_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_prompt_samples")),
    )
    op.create_index(op.f("ix_prompt_samples_created_at"), "prompt_samples", ["created_at"], unique=False)
    op.create_index(
        "ix_prompt_samples_organization_id_created_at",
        "prompt_samples",
        ["organization_id", "created_at"],
        unique=False,
    )
    op.create_index(op.f("ix_prompt_samples_project_id"), "prompt_samples", ["project_id"], unique=False)


def downgrade() -> None:
    """Undo."""
    op.drop_index(op.f("ix_prompt_samples_project_id"), "prompt_samples")
    op.drop_index("ix_prompt_samples_organization_id_created_at", "prompt_samples")
    op.drop_index(op.f("ix_prompt_samples_created_at"), "prompt_samples")

    op.drop_table("prompt_samples")
    op.drop_index(op.f("ix_project_members_user_id"), "project_members")

    op.drop_table("project_members")
    op.drop_index(op.f("ix_api_keys_user_id"), "api_keys")
    op.drop_index(op.f("ix_api_keys_project_id"), "api_keys")
    op.drop_index(op.f("ix_api_keys_organization_id"), "api_keys")

    op.drop_table("api_keys")
    op.drop_table("users")
    op.drop_table("stored_bytes")
    op.drop_index(op.f("ix_rate_limits_organization_id"), "rate_limits")

    op.drop_table("rate_limits")
    op.drop_index(op.f("ix_projects_organization_id"), "projects")

    op.drop_table("projects")
    op.drop_index(op.f("ix_revisions_number"), "revisions")

    op.drop_table("revisions")
    op.drop_table("organizations")
    op.drop_index("ix_audit_log_organization_id_at", "audit_log")

    op.drop_table("audit_log")
    op.drop_table("act_numbers")
