"""From what a provider says of a person to the user of this server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvarn.config.console import OidcConfig
from kvarn.identity.sessions import Sessions
from kvarn.store.errors import NotFoundError
from kvarn.store.models import User
from kvarn.store.owner import Principal, Role
from kvarn.store.repositories.tenants.audited_changes import Actor, AuditedChange
from kvarn.store.repositories.tenants.organizations import default_project_id
from kvarn.store.repositories.tenants.principals import find_person
from kvarn.store.repositories.tenants.users import add_member, add_user, change_user, find_user
from kvarn.wire.openai.errors import ApiError

_MAX_EMAIL = 320
_MAX_NAME = 256


class People:
    """Users of the organisations, by their addresses; `config` says who may become one, and which role they have."""

    def __init__(self, config: OidcConfig, sessions: Sessions) -> None:
        self._config = config
        self._sessions = sessions

    async def principal_of(self, claims: Mapping[str, Any]) -> Principal:
        """The principal of the person with these claims. Raises `ApiError` 403: they may not sign in; `ConflictError`:
        who administers the organisation alone would be a member."""
        config = self._config
        email, organization_id = self._email(claims), self._organization(claims)
        role = self._role(claims)
        actor = Actor(f"provider {config.name}", None, organization_id)
        async with self._sessions.keys.cache.audited_change(actor) as change:
            user = await self._user(change, organization_id, email, claims, role)
            if role is not None and user.role != role:
                await change_user(change, organization_id, user.id, role)
            await change.session.flush()
            principal = await find_person(change.session, user.id)
            if principal is None:
                raise _not_allowed(f"{email} is in no project: an administrator can add them to one")
        return principal

    async def _user(
        self, change: AuditedChange, organization_id: str, email: str, claims: Mapping[str, Any], role: Role | None
    ) -> User:
        try:
            return await find_user(change.session, organization_id, email)
        except NotFoundError:
            if not self._config.allowed_domains:
                raise _not_allowed(
                    f"{email} is no user of this server: an administrator can add them, or set "
                    "console.oidc.allowed_domains"
                ) from None
        try:
            project_id = self._config.project or await default_project_id(change.session, organization_id)
        except NotFoundError:
            raise _not_allowed(f"console.oidc names an organization that there is not: {organization_id!r}") from None
        name = claims.get("name")
        shown = name[:_MAX_NAME] if isinstance(name, str) and name.strip() else email.partition("@")[0]
        user = await add_user(change, organization_id, email, shown, role or Role.MEMBER)
        await change.session.flush()
        await add_member(change, organization_id, project_id, user, "member")
        return user

    def _email(self, claims: Mapping[str, Any]) -> str:
        email = claims.get("email")
        if not isinstance(email, str) or email.count("@") != 1 or len(email) > _MAX_EMAIL or not email.isprintable():
            raise _not_allowed("the provider told no address: is 'email' among console.oidc.scopes?")
        if self._config.require_verified_email and claims.get("email_verified") not in (True, "true"):
            raise _not_allowed(
                "the provider does not call the address verified. If its administrator sets all addresses, set "
                "console.oidc.require_verified_email to false"
            )
        domain = email.rpartition("@")[2].lower()
        if self._config.allowed_domains and domain not in self._config.allowed_domains:
            raise _not_allowed(f"addresses of {domain!r} are not in console.oidc.allowed_domains")
        return email.lower()

    def _organization(self, claims: Mapping[str, Any]) -> str:
        if self._config.organization_claim is None:
            return self._config.organization
        named = _values(claims, self._config.organization_claim)
        found = {self._config.organizations[each] for each in named if each in self._config.organizations}
        if len(found) != 1:
            raise _not_allowed(
                f"the claim {self._config.organization_claim!r} names {'several' if found else 'none'} of "
                "console.oidc.organizations"
            )
        return found.pop()

    def _role(self, claims: Mapping[str, Any]) -> Role | None:
        """The role that the provider gives; None: the user's own."""
        if self._config.role_claim is None:
            return None
        is_admin = not set(self._config.admin_values).isdisjoint(_values(claims, self._config.role_claim))
        return Role.ADMIN if is_admin else Role.MEMBER


def _values(claims: Mapping[str, Any], name: str) -> list[str]:
    value = claims.get(name)
    values = value if isinstance(value, list) else [value]
    return [each for each in values if isinstance(each, str)]


def _not_allowed(why: str) -> ApiError:
    return ApiError(403, f"You are not signed in: {why}.", code="sign_in_refused")
