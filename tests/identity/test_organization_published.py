"""What administrators are answered is what OpenAI's published document says."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from published_schemas import check

ROOT = "/v1/organization"
PROJECT = f"{ROOT}/projects/proj_default"


def asked(client: httpx.Client, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    answer = client.request(method, path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture
def anybody(server):
    """An administrator of an open server."""
    with server.client() as made:
        yield made


def test_projects_and_their_keys(anybody: httpx.Client) -> None:
    project = asked(anybody, "POST", f"{ROOT}/projects", {"name": "published"})
    check("Project", project)
    check("ProjectListResponse", asked(anybody, "GET", f"{ROOT}/projects?include_archived=true"))
    path = f"{ROOT}/projects/{project['id']}"
    check("ProjectApiKeyListResponse", asked(anybody, "GET", f"{path}/api_keys"))
    key = asked(anybody, "POST", f"{path}/api_keys", {"name": "k"})
    check("ProjectApiKey", key)
    check("ProjectApiKeyListResponse", asked(anybody, "GET", f"{path}/api_keys"))
    check("ProjectApiKeyDeleteResponse", asked(anybody, "DELETE", f"{path}/api_keys/{key['id']}"))
    check("Project", asked(anybody, "POST", f"{path}/archive"))


def test_service_accounts(anybody: httpx.Client) -> None:
    made = asked(anybody, "POST", f"{PROJECT}/service_accounts", {"name": "s"})
    check("ProjectServiceAccountCreateResponse", made)
    path = f"{PROJECT}/service_accounts/{made['id']}"
    check("ProjectServiceAccount", asked(anybody, "GET", path))
    check("ProjectServiceAccount", asked(anybody, "POST", path, {"role": "owner"}))
    check("ServiceAccountApiKeyBody", asked(anybody, "POST", f"{path}/api_keys", {}))
    check("ProjectServiceAccountListResponse", asked(anybody, "GET", f"{PROJECT}/service_accounts"))
    check("ProjectApiKeyListResponse", asked(anybody, "GET", f"{PROJECT}/api_keys"))
    check("ProjectServiceAccountDeleteResponse", asked(anybody, "DELETE", path))


def test_users(anybody: httpx.Client) -> None:
    user = asked(anybody, "POST", f"{ROOT}/users", {"email": "published@example.org"})
    check("User", user)
    check("UserListResponse", asked(anybody, "GET", f"{ROOT}/users"))
    joined = asked(anybody, "POST", f"{PROJECT}/users", {"user_id": user["id"], "role": "member"})
    check("ProjectUser", joined)
    asked(anybody, "POST", f"{PROJECT}/api_keys", {"name": "k", "user_id": user["id"]})
    check("ProjectApiKeyListResponse", asked(anybody, "GET", f"{PROJECT}/api_keys"))
    check("ProjectUserListResponse", asked(anybody, "GET", f"{PROJECT}/users"))
    check("ProjectUserDeleteResponse", asked(anybody, "DELETE", f"{PROJECT}/users/{user['id']}"))
    check("User", asked(anybody, "POST", f"{ROOT}/users/{user['id']}", {"role": "owner"}))
    check("UserDeleteResponse", asked(anybody, "DELETE", f"{ROOT}/users/{user['id']}"))


def test_administrators_keys(anybody: httpx.Client) -> None:
    made = asked(anybody, "POST", f"{ROOT}/admin_api_keys", {"name": "k", "expires_in_seconds": 60})
    check("AdminApiKeyCreateResponse", made)
    check("AdminApiKey", asked(anybody, "GET", f"{ROOT}/admin_api_keys/{made['id']}"))
    check("ApiKeyList", asked(anybody, "GET", f"{ROOT}/admin_api_keys?order=desc"))


def test_rate_limits(anybody: httpx.Client) -> None:
    check("ProjectRateLimitListResponse", asked(anybody, "GET", f"{PROJECT}/rate_limits"))
    path = f"{PROJECT}/rate_limits/rl-no-such-model"
    assert anybody.post(path, json={"max_requests_per_1_minute": 1}).status_code == 404
    limit = asked(anybody, "POST", f"{PROJECT}/rate_limits/rl-vec", {"max_requests_per_1_minute": 10_000_000})
    check("ProjectRateLimit", limit)
    asked(anybody, "DELETE", f"{PROJECT}/rate_limits/rl-vec")


def test_the_audit_log(anybody: httpx.Client) -> None:
    asked(anybody, "POST", f"{ROOT}/projects", {"name": "audited"})
    # `organization.created` is ours: whoever created the default organisation is in its log.
    query = "&".join(f"event_types[]={kind}" for kind in ("project.created", "api_key.created", "user.added"))
    found = asked(anybody, "GET", f"{ROOT}/audit_logs?{query}")
    assert found["data"]
    check("ListAuditLogsResponse", found)


def test_errors(anybody: httpx.Client) -> None:
    for path in (f"{ROOT}/projects/none", f"{ROOT}/projects?limit=0", f"{ROOT}/users/none"):
        check("ErrorResponse", anybody.get(path).json())
