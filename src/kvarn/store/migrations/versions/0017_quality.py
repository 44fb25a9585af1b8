"""Reviews of sampled prompts, feedback, evaluation sets; usage events are found by their clients' ids."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0017"
down_revision = "0016"

_NAMED = sa.text("request_id NOT LIKE 'req-%'")


def upgrade() -> None:
    op.create_index(
        "ix_usage_events_named", "usage_events", ["request_id"], postgresql_where=_NAMED, sqlite_where=_NAMED
    )
    _add_review()
    _add_feedback()
    _add_sets()
    _add_runs()


def downgrade() -> None:
    for table in ("evaluation_results", "evaluation_runs", "evaluation_set_versions", "evaluation_sets", "feedback"):
        op.drop_table(table)
    op.drop_index(op.f("ix_prompt_samples_event_id"), "prompt_samples")
    for column in ("event_id", "answer", "review", "note", "reviewed_by", "reviewed_at"):
        op.drop_column("prompt_samples", column)
    op.drop_index("ix_usage_events_named", "usage_events")


def _add_review() -> None:
    for column in (
        sa.Column("event_id", sa.String(length=64), nullable=True),
        sa.Column("answer", sa.LargeBinary(), nullable=True),
        sa.Column("review", sa.String(length=16), nullable=False, server_default="unreviewed"),
        sa.Column("note", sa.String(length=1024), nullable=True),
        sa.Column("reviewed_by", sa.String(length=256), nullable=True),
        _number("reviewed_at", nullable=True),
    ):
        op.add_column("prompt_samples", column)
    op.create_index(op.f("ix_prompt_samples_event_id"), "prompt_samples", ["event_id"])


def _add_feedback() -> None:
    op.create_table(
        "feedback",
        *_owned("feedback"),
        _number("created_at"),
        _number("changed_at"),
        _text("event_id", 64),
        _text("request_id", 128),
        _text("author", 128),
        _text("model", 256),
        _text("version", 256),
        sa.Column("rating", sa.String(length=8), nullable=True),
        sa.Column("score", sa.Double(), nullable=True),
        sa.Column("comment", sa.String(), nullable=True),
        sa.Column("labels", _json(), nullable=False),
        sa.Column("extra", _json(), nullable=False),
        sa.UniqueConstraint("project_id", "event_id", "author", name=op.f("uq_feedback_project_id_event_id_author")),
    )
    op.create_index(op.f("ix_feedback_created_at"), "feedback", ["created_at"])
    op.create_index("ix_feedback_organization_id_created_at", "feedback", ["organization_id", "created_at"])
    op.create_index("ix_feedback_organization_id_counted_bytes", "feedback", ["organization_id", "counted_bytes"])


def _add_sets() -> None:
    sets = "evaluation_sets"
    op.create_table(
        sets,
        *_owned(sets),
        _text("name", 64),
        _text("description", 512),
        _number("created_at"),
        _number("changed_at"),
        _number("version"),
        _number("num_items"),
        sa.Column("baseline_run_id", sa.String(length=64), nullable=True),
        sa.UniqueConstraint("project_id", "name", name=op.f("uq_evaluation_sets_project_id_name")),
    )
    op.create_index(op.f("ix_evaluation_sets_changed_at"), sets, ["changed_at"])
    op.create_index("ix_evaluation_sets_project_id_created_at", sets, ["project_id", "created_at"])
    op.create_index("ix_evaluation_sets_organization_id_changed_at", sets, ["organization_id", "changed_at"])
    op.create_index("ix_evaluation_sets_organization_id_counted_bytes", sets, ["organization_id", "counted_bytes"])
    op.create_table(
        "evaluation_set_versions",
        _text("set_id", 64),
        _number("version"),
        _number("created_at"),
        sa.Column("key_id", sa.String(length=64), nullable=True),
        _text("note", 512),
        _number("num_items"),
        sa.Column("items", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["set_id"], ["evaluation_sets.id"], name=op.f("fk_evaluation_set_versions_set_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("set_id", "version", name=op.f("pk_evaluation_set_versions")),
    )


def _add_runs() -> None:
    runs = "evaluation_runs"
    op.create_table(
        runs,
        *_owned(runs),
        _text("set_id", 64),
        _text("set_name", 64),
        _number("set_version"),
        sa.Column("key_id", sa.String(length=64), nullable=True),
        _text("asked_model", 256),
        _text("model", 256),
        _text("model_version", 256),
        sa.Column("settings", _json(), nullable=False),
        _text("status", 16),
        _number("created_at"),
        _number("started_at", nullable=True),
        _number("finished_at", nullable=True),
        *[_number(name) for name in ("total", "answered", "passed", "errors")],
        sa.Column("score", sa.Double(), nullable=True),
        sa.Column("problem", sa.String(length=512), nullable=True),
        sa.Column("leased_by", sa.String(length=64), nullable=True),
        _number("leased_until", nullable=True),
        sa.ForeignKeyConstraint(
            ["set_id"], ["evaluation_sets.id"], name=op.f("fk_evaluation_runs_set_id"), ondelete="CASCADE"
        ),
    )
    op.create_index(op.f("ix_evaluation_runs_status"), runs, ["status"])
    op.create_index(op.f("ix_evaluation_runs_created_at"), runs, ["created_at"])
    op.create_index("ix_evaluation_runs_set_id_created_at", runs, ["set_id", "created_at"])
    op.create_index("ix_evaluation_runs_organization_id_created_at", runs, ["organization_id", "created_at"])
    op.create_index("ix_evaluation_runs_organization_id_counted_bytes", runs, ["organization_id", "counted_bytes"])
    op.create_table(
        "evaluation_results",
        _text("run_id", 64),
        _number("item"),
        sa.Column("score", sa.Double(), nullable=False),
        sa.Column("passed", sa.Boolean(), nullable=False),
        sa.Column("output", sa.String(), nullable=False),
        sa.Column("grades", sa.JSON(), nullable=False),
        sa.Column("error", sa.String(length=512), nullable=True),
        _text("request_id", 128),
        _number("output_tokens"),
        sa.ForeignKeyConstraint(
            ["run_id"], ["evaluation_runs.id"], name=op.f("fk_evaluation_results_run_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "item", name=op.f("pk_evaluation_results")),
    )


def _owned(table: str) -> list[sa.schema.SchemaItem]:
    """Columns and constraints of an object that a project owns and that counts for its organisation."""
    return [
        _text("id", 64),
        _text("organization_id", 64),
        _text("project_id", 64),
        _number("counted_bytes"),
        sa.ForeignKeyConstraint(
            ["organization_id"], ["organizations.id"], name=op.f(f"fk_{table}_organization_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f(f"fk_{table}_project_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{table}")),
    ]


def _text(name: str, length: int) -> sa.Column[str]:
    return sa.Column(name, sa.String(length=length), nullable=False)


def _number(name: str, *, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=nullable)


def _json() -> sa.JSON:
    return sa.JSON().with_variant(JSONB(), "postgresql")
