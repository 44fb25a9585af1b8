"""Principals: the one a request acts for, and the data that it may touch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kvarn.store.ids import DEFAULT_ORGANIZATION, DEFAULT_PROJECT


class Role(StrEnum):
    """Rights of a key besides using models."""

    ADMIN = "admin"
    MEMBER = "member"
    """A person's key: uses models and sees the usage of its project."""
    SERVICE = "service"
    """A program's key: uses models, nothing else."""


@dataclass(frozen=True, slots=True)
class Owner:
    """A project of an organisation: every stored object has one, and every query of a repository is bound to one."""

    organization_id: str
    project_id: str


@dataclass(frozen=True, slots=True)
class Scopes:
    """Restrictions of a key; None restricts nothing, an empty tuple allows nothing."""

    models: tuple[str, ...] | None = None
    endpoints: tuple[str, ...] | None = None
    """Beginnings of paths, such as `/v1/chat`."""
    adapters: tuple[str, ...] | None = None
    tools: tuple[str, ...] | None = None
    """Tools that the platform runs: types, such as `file_search`, or `mcp:LABEL` for one server."""


UNRESTRICTED = Scopes()


@dataclass(frozen=True, slots=True)
class LimitRule:
    """Limits of one holder (organisation, project or key) for one model, or for all models together."""

    holder: str
    """Id of the organisation, project or key whose requests are counted together."""
    model: str = "*"
    """Model it holds for; `*`: each model has counts of its own under the same limits."""
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None


@dataclass(frozen=True, slots=True)
class Principal:
    """The one a request acts for: the bearer of a key, or anybody on an open server."""

    owner: Owner
    role: Role = Role.SERVICE
    user_id: str | None = None
    key_id: str | None = None  # none for requests without a key
    scopes: Scopes = UNRESTRICTED
    weight: float = 1.0
    """The organisation's share of a saturated engine."""
    priority: int = 0
    """Lowest tier number (0 is interactive, 10 is batch) that the organisation's requests may ask for."""
    cache_salt: str = ""
    """Secret of the organisation: cached prompts are found only under it."""
    limits: tuple[LimitRule, ...] = ()  # all that hold for this key, its project and its organisation
    log_prompts: bool = False
    """Whether the project opted in to its prompts being sampled and kept, encrypted."""
    project_tools: tuple[str, ...] | None = None
    """Tools that the project may use, as in `Scopes.tools`."""
    response_cache: str | None = None
    """The project's response cache: `off`, `exact` or `semantic`; None: the server's setting holds."""

    @property
    def organization_id(self) -> str:
        return self.owner.organization_id

    @property
    def project_id(self) -> str:
        return self.owner.project_id


ANYBODY = Principal(Owner(DEFAULT_ORGANIZATION, DEFAULT_PROJECT), Role.ADMIN, priority=-1000)
"""The principal of requests without a key on an open server."""
