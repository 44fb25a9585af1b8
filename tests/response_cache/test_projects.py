"""Projects opt in, and their caches are cleared, by administrators."""

from __future__ import annotations

from kvarn.store.repositories.tenants.principals import find_bearer


def test_a_project_has_the_cache_that_its_administrator_sets_until_it_is_cleared(server, client):
    project = client.post("/v1/organization/projects", json={"name": "cached"}).json()
    path = f"/v1/organization/projects/{project['id']}"
    assert project["response_cache"] is None
    assert client.post(path, json={"response_cache": "semantic"}).json()["response_cache"] == "semantic"
    assert client.post(path, json={"response_cache": "large"}).json()["error"]["param"] == "response_cache"

    owner = server.do(find_owner(server, project["id"]))
    before = server.do(find_bearer(server.gateway.store, owner, None))
    assert before.response_cache == "semantic"
    cleared = client.delete(f"{path}/response_cache")
    assert cleared.json()["object"] == "organization.project.response_cache.deleted"
    assert server.do(find_bearer(server.gateway.store, owner, None)).cache_salt != before.cache_salt
    assert client.delete("/v1/organization/projects/proj_none/response_cache").status_code == 404

    assert client.post(path, json={"response_cache": "default"}).json()["response_cache"] is None
    assert server.do(find_bearer(server.gateway.store, owner, None)).response_cache is None


async def find_owner(server, project_id):
    from kvarn.store.models import Project
    from kvarn.store.owner import Owner

    async with server.gateway.store.reading() as session:
        project = await session.get(Project, project_id)
        return Owner(project.organization_id, project.id)
