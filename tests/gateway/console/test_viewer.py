"""Who sees what, and under which names."""

from __future__ import annotations

from kvarn.gateway.console.viewer import ANOTHER_TENANT, Viewer
from kvarn.quality.probe import TENANT, UNCACHED_TENANT
from kvarn.store.engine import Store
from kvarn.store.ids import DEFAULT_ORGANIZATION
from kvarn.store.owner import ANYBODY, Owner, Principal, Role
from new_tenants import create_organization


def viewer(role: Role, organization: str = "org-a", project: str = "proj_1") -> Viewer:
    return Viewer(Principal(Owner(organization, project), role), store=None)  # type: ignore[arg-type]


def test_a_key_of_a_project_sees_its_project() -> None:
    for role in (Role.MEMBER, Role.SERVICE):
        seen = viewer(role)
        assert (seen.organization_id, seen.project_id, seen.is_platform_admin) == ("org-a", "proj_1", False)
        assert seen.may_see("org-a", "proj_1")
        assert not seen.may_see("org-a", "proj_2") and not seen.may_see("org-b", "proj_1") and not seen.may_see("org-a")


def test_an_administrator_sees_the_organisation_and_the_platforms_everything() -> None:
    seen = viewer(Role.ADMIN)
    assert (seen.organization_id, seen.project_id, seen.is_platform_admin) == ("org-a", None, False)
    assert seen.may_see("org-a", "proj_2") and seen.may_see("org-a") and not seen.may_see("org-b", "proj_1")
    platform = viewer(Role.ADMIN, DEFAULT_ORGANIZATION)
    assert (platform.organization_id, platform.project_id) == (None, None)
    assert platform.is_platform_admin and platform.may_see("org-b", "proj_9")
    assert not viewer(Role.MEMBER, DEFAULT_ORGANIZATION).may_see("org-b", "proj_9")


async def test_names_of_other_tenants_are_not_told(store: Store) -> None:
    mine = await create_organization(store, "acme")
    other = await create_organization(store, "globex")
    ids = [mine.organization_id, other.organization_id, "org-gone"]
    seen = await Viewer(mine, store).names_of(ids)
    assert list(seen.values()) == ["acme", ANOTHER_TENANT, ANOTHER_TENANT]
    assert list((await Viewer(ANYBODY, store).names_of(ids)).values()) == ["acme", "globex", "org-gone"]
    assert await Viewer(mine, store).name_of(other.organization_id) == ANOTHER_TENANT


async def test_golden_prompts_are_nobodys_and_have_a_name(store: Store) -> None:
    for principal in (ANYBODY, await create_organization(store, "acme")):
        seen = Viewer(principal, store)
        assert await seen.names_of([TENANT, UNCACHED_TENANT]) == dict.fromkeys(
            [TENANT, UNCACHED_TENANT], "golden prompts"
        )
        assert not seen.may_see(TENANT)
