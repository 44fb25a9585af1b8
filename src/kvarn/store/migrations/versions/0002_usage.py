"""The usage ledger, its outbox, budgets and billing tables; leases."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "billed_events",
        sa.Column("event_id", sa.String(length=64), nullable=False),
        sa.Column("billed_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("event_id", name=op.f("pk_billed_events")),
    )
    op.create_table(
        "billed_hours",
        sa.Column("hour_at", sa.BigInteger(), nullable=False),
        sa.Column("organization_id", sa.String(length=64), nullable=False),
        sa.Column("project_id", sa.String(length=64), nullable=False),
        sa.Column("key_id", sa.String(length=64), nullable=False),
        sa.Column("model", sa.String(length=256), nullable=False),
        sa.Column("currency", sa.String(length=3), nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cost", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(
            "hour_at", "organization_id", "project_id", "key_id", "model", "currency", name=op.f("pk_billed_hours")
        ),
    )
    op.create_index(
        "ix_billed_hours_organization_id_hour", "billed_hours", ["organization_id", "hour_at"], unique=False
    )

    op.create_table(
        "erased_organizations",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("erased_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_erased_organizations")),
    )

    op.create_table(
        "usage_events",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("request_id", sa.String(length=128), nullable=False),
        sa.Column("organization_id", sa.String(length=64), nullable=False),
        sa.Column("project_id", sa.String(length=64), nullable=False),
        sa.Column("user_id", sa.String(length=64), nullable=True),
        sa.Column("key_id", sa.String(length=64), nullable=True),
        sa.Column("endpoint", sa.String(length=256), nullable=False),
        sa.Column("model", sa.String(length=256), nullable=False),
        sa.Column("model_version", sa.String(length=256), nullable=False),
        sa.Column("adapter", sa.String(length=256), nullable=False),
        sa.Column("replica", sa.String(length=256), nullable=False),
        sa.Column("service_tier", sa.String(length=16), nullable=False),
        sa.Column("batch_id", sa.String(length=64), nullable=True),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("finished_at", sa.BigInteger(), nullable=False),
        sa.Column("duration_ms", sa.BigInteger(), nullable=False),
        sa.Column("ttft_ms", sa.BigInteger(), nullable=True),
        sa.Column("cost", sa.BigInteger(), nullable=False),
        sa.Column("currency", sa.String(length=3), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_usage_events")),
    )
    op.create_index("ix_usage_events_finished_at", "usage_events", ["finished_at"], unique=False)
    op.create_index(
        "ix_usage_events_batch_id",
        "usage_events",
        ["batch_id"],
        unique=False,
        postgresql_where=sa.text("batch_id IS NOT NULL"),
        sqlite_where=sa.text("batch_id IS NOT NULL"),
    )
    op.create_index(
        "ix_usage_events_organization_id_at", "usage_events", ["organization_id", "finished_at"], unique=False
    )

    op.create_table(
        "usage_hours",
        sa.Column("organization_id", sa.String(length=64), nullable=False),
        sa.Column("hour_at", sa.BigInteger(), nullable=False),
        sa.Column("project_id", sa.String(length=64), nullable=False),
        sa.Column("user_id", sa.String(length=64), nullable=False),
        sa.Column("key_id", sa.String(length=64), nullable=False),
        sa.Column("endpoint", sa.String(length=256), nullable=False),
        sa.Column("model", sa.String(length=256), nullable=False),
        sa.Column("service_tier", sa.String(length=16), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("currency", sa.String(length=3), nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cost", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(
            "organization_id",
            "hour_at",
            "project_id",
            "user_id",
            "key_id",
            "endpoint",
            "model",
            "service_tier",
            "outcome",
            "currency",
            name=op.f("pk_usage_hours"),
        ),
    )
    op.create_index("ix_usage_hours_hour_at", "usage_hours", ["hour_at"], unique=False)

    op.create_table(
        "usage_periods",
        sa.Column("organization_id", sa.String(length=64), nullable=False),
        sa.Column("period", sa.String(length=16), nullable=False),
        sa.Column("project_id", sa.String(length=64), nullable=False),
        sa.Column("currency", sa.String(length=3), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("cost", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("organization_id", "period", "project_id", "currency", name=op.f("pk_usage_periods")),
    )

    op.create_table(
        "leases",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("holder", sa.String(length=64), nullable=False),
        sa.Column("until_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_leases")),
    )

    op.create_table(
        "budgets",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("organization_id", sa.String(length=64), nullable=False),
        sa.Column("holder_id", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("unit", sa.String(length=16), nullable=False),
        sa.Column("currency", sa.String(length=3), nullable=True),
        sa.Column("period", sa.String(length=16), nullable=False),
        sa.Column("hard_limit", sa.BigInteger(), nullable=True),
        sa.Column("soft_limit", sa.BigInteger(), nullable=True),
        sa.Column("alerted_period", sa.String(length=16), nullable=True),
        sa.ForeignKeyConstraint(
            ["organization_id"], ["organizations.id"], name=op.f("fk_budgets_organization_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_budgets")),
    )
    op.create_index(op.f("ix_budgets_holder_id"), "budgets", ["holder_id"], unique=False)
    op.create_index(op.f("ix_budgets_organization_id"), "budgets", ["organization_id"], unique=False)

    op.create_table(
        "usage_outbox",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("event_id", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["event_id"], ["usage_events.id"], name=op.f("fk_usage_outbox_event_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_usage_outbox")),
        sa.UniqueConstraint("event_id", name=op.f("uq_usage_outbox_event_id")),
    )


def downgrade() -> None:
    """Undo."""
    op.drop_table("usage_outbox")
    op.drop_index(op.f("ix_budgets_organization_id"), "budgets")
    op.drop_index(op.f("ix_budgets_holder_id"), "budgets")

    op.drop_table("budgets")
    op.drop_table("leases")
    op.drop_table("usage_periods")
    op.drop_index("ix_usage_hours_hour_at", "usage_hours")

    op.drop_table("usage_hours")
    op.drop_index("ix_usage_events_organization_id_at", "usage_events")
    op.drop_index("ix_usage_events_batch_id", "usage_events")
    op.drop_index("ix_usage_events_finished_at", "usage_events")

    op.drop_table("usage_events")
    op.drop_table("erased_organizations")
    op.drop_index("ix_billed_hours_organization_id_hour", "billed_hours")

    op.drop_table("billed_hours")
    op.drop_table("billed_events")
