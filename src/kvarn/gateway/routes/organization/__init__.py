"""`/v1/organization`: what administrators do, in OpenAI's shapes."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel

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
from kvarn.wire.openai.organization import (
    AdminKeyCreate,
    ProjectCreate,
    ProjectKeyCreate,
    ProjectUpdate,
    ProjectUserCreate,
    ProjectUserUpdate,
    RateLimitUpdate,
    ServiceAccountCreate,
    ServiceAccountKeyCreate,
    ServiceAccountUpdate,
    TenantCreate,
    TenantUpdate,
    UserCreate,
    UserUpdate,
)

router = APIRouter(tags=["administration"])
for _resource in (
    admin_keys,
    audit_logs,
    project_keys,
    project_users,
    projects,
    rate_limits,
    service_accounts,
    tenants,
    users,
):
    router.include_router(_resource.router)

BODIES: list[type[BaseModel]] = [
    AdminKeyCreate,
    ProjectCreate,
    ProjectKeyCreate,
    ProjectUpdate,
    ProjectUserCreate,
    ProjectUserUpdate,
    RateLimitUpdate,
    ServiceAccountCreate,
    ServiceAccountKeyCreate,
    ServiceAccountUpdate,
    TenantCreate,
    TenantUpdate,
    UserCreate,
    UserUpdate,
]
"""Of the requests, for the OpenAPI document."""
