"""Containers of the code interpreter: `/v1/containers`."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from pydantic import Field

from kvarn.wire.openai.common import RequestModel

MemoryLimit = Literal["1g", "4g", "16g", "64g"]


class ContainerExpiry(RequestModel):
    anchor: Literal["last_active_at"]
    minutes: int = Field(ge=1, le=20)


class NetworkPolicy(RequestModel):
    type: Literal["disabled", "allowlist"]
    allowed_domains: list[str] | None = None
    domain_secrets: list[dict[str, Any]] | None = None


class ContainerRequest(RequestModel):
    """The body that makes a container. `skills` are refused, as is a network."""

    name: str = Field(max_length=256)
    expires_after: ContainerExpiry | None = None
    file_ids: list[str] = Field(default_factory=list, max_length=50)
    memory_limit: MemoryLimit | None = None
    network_policy: NetworkPolicy | None = None
    skills: list[Any] | None = None


class ContainerFileRequest(RequestModel):
    """The body that copies a file into a container; a form brings one of its own."""

    file_id: str


class ContainerObject(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    created_at: int
    last_active_at: int
    name: str
    status: str
    expires_after: dict[str, Any]
    memory_limit: str
    network_policy: dict[str, Any]
    object: str = "container"


class ContainerFileObject(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    bytes: int
    container_id: str
    created_at: int
    path: str
    source: str
    object: str = "container.file"
