"""A feed of changes in place of one revision for all; version numbers in place of counted audit entries."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.create_table(
        "changes",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("organization_id", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("token", sa.String(length=64), nullable=False),
        sa.Column("changed_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_changes")),
    )
    op.execute(
        "INSERT INTO changes (organization_id, kind, token, changed_at)"
        " SELECT object_id, 'deleted', id, effective_at FROM audit_log"
        " WHERE organization_id = 'org-default' AND type = 'organization.deleted' ORDER BY effective_at, id"
    )
    op.create_table(
        "version_numbers",
        sa.Column("model", sa.String(length=256), nullable=False),
        sa.Column("last_version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("model", name=op.f("pk_version_numbers")),
    )
    op.execute(
        "INSERT INTO version_numbers (model, last_version) SELECT model, max(number) FROM ("
        "SELECT object_id AS model, count(*) AS number FROM audit_log"
        " WHERE organization_id = 'org-default' AND type = 'deployment.created' GROUP BY object_id"
        " UNION ALL SELECT model, max(version) AS number FROM deployment_versions GROUP BY model"
        ") AS known GROUP BY model"
    )
    op.drop_table("revisions")


def downgrade() -> None:
    op.create_table(
        "revisions",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_revisions")),
    )
    op.drop_table("version_numbers")
    op.drop_table("changes")
