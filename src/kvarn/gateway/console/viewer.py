"""A viewer of the console: whose requests they see, and which names they may read.

role of the principal                       sees
admin of the default organisation           everything
admin of another organisation               their organisation
member, service                             the project of their key
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends
from msgspec.structs import replace

from kvarn.catalog.model_table import ModelTable
from kvarn.catalog.models import ServedModel
from kvarn.gateway.dependencies import GatewayDep, PrincipalDep
from kvarn.identity.scopes import insufficient_permissions, may_use_model
from kvarn.observe.history import HistoryPage
from kvarn.quality.probe import TENANT, UNCACHED_TENANT
from kvarn.store.engine import Store
from kvarn.store.ids import DEFAULT_ORGANIZATION
from kvarn.store.owner import Owner, Principal, Role
from kvarn.store.repositories.tenants.organizations import names_of_organizations
from kvarn.store.repositories.tenants.projects import get_project
from kvarn.wire.openai.errors import model_not_found

ANOTHER_TENANT = "another tenant"
"""Shown in place of a name that the viewer may not read."""
_PROBES = dict.fromkeys((TENANT, UNCACHED_TENANT), "golden prompts")
"""The server's own questions to engines: no tenant's, and not kept."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """The one who looks at the console, or asks for its data with an API key."""

    principal: Principal
    store: Store

    @property
    def is_platform_admin(self) -> bool:
        return self.principal.role is Role.ADMIN and self.principal.organization_id == DEFAULT_ORGANIZATION

    @property
    def organization_id(self) -> str | None:
        """The only organisation that they see; None: all."""
        return None if self.is_platform_admin else self.principal.organization_id

    @property
    def project_id(self) -> str | None:
        """The only project that they see; None: all of the organisation."""
        return None if self.principal.role is Role.ADMIN else self.principal.project_id

    def may_see(self, organization_id: str, project_id: str | None = None) -> bool:
        """Whether they see what belongs to a project, or (without one) to the organisation as a whole."""
        if organization_id in _PROBES or self.organization_id not in (None, organization_id):
            return False
        return self.project_id in (None, project_id)

    async def owner_of(self, project_id: str | None) -> Owner:
        """A project of the viewer's own organisation, whatever else they see; None: their own. Raises `ApiError` 403
        and `NotFoundError`: it is not theirs."""
        own = self.principal.owner
        if project_id is None or project_id == own.project_id:
            return own
        if self.project_id is not None:
            raise insufficient_permissions("role: admin")
        async with self.store.reading() as session:
            await get_project(session, own.organization_id, project_id)
        return Owner(own.organization_id, project_id)

    def may_use(self, model: str) -> bool:
        """Whether their key may ask this model."""
        return may_use_model(self.principal, model)

    def find_model(self, models: ModelTable, name: str) -> ServedModel:
        """A model that their key may ask. Raises `ApiError` 404, which names no other ones."""
        found = models.find(name, self.may_use)
        if not self.may_use(found.name):
            raise model_not_found(name[:200], [each.name for each in models if self.may_use(each.name)])
        return found

    def of_history(self, page: HistoryPage) -> HistoryPage:
        """The page without what it says of models that their key may not ask."""
        recent = {model: values for model, values in page.recent.items() if not model or self.may_use(model)}
        return replace(
            page, recent=recent, marks=[each for each in page.marks if not each.model or self.may_use(each.model)]
        )

    async def names_of(self, organization_ids: Collection[str]) -> dict[str, str]:
        """Names of organisations as this viewer may read them, in one query; a deleted one's is its id."""
        allowed = {each for each in organization_ids if self.organization_id in (None, each)}
        names = dict.fromkeys(organization_ids, ANOTHER_TENANT) | {each: each for each in allowed}
        names |= {each: _PROBES[each] for each in _PROBES.keys() & names}
        if allowed:
            async with self.store.reading() as session:
                names |= await names_of_organizations(session, allowed)
        return names

    async def name_of(self, organization_id: str) -> str:
        return (await self.names_of([organization_id]))[organization_id]


async def current_viewer(gateway: GatewayDep, principal: PrincipalDep) -> Viewer:
    return Viewer(principal, gateway.store)


ConsoleViewer = Annotated[Viewer, Depends(current_viewer)]
