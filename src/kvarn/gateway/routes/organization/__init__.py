"""`/v1/organization`: what administrators do, in OpenAI's shapes."""

from __future__ import annotations

from kvarn.gateway.routes.organization import (
    admin_keys,
    audit_logs,
    project_keys,
    project_users,
    projects,
    rate_limits,
    service_accounts,
    tenants,
    users,
)

MODULES = (
    admin_keys,
    audit_logs,
    project_keys,
    project_users,
    projects,
    rate_limits,
    service_accounts,
    tenants,
    users,
)
"""Each with a `router`."""
