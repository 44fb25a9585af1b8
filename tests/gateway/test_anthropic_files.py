"""Files through Anthropic's official client: the same files, in its shape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from lazy_modules import LazyModule

anthropic = LazyModule("anthropic")

VERSION = {"anthropic-version": "2023-06-01"}


@pytest.fixture
def tenant(server: Any, request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    with server.add_tenant(f"claude-{request.node.name}") as client:
        yield client


@pytest.fixture
def claude(server: Any, tenant: httpx.Client) -> Iterator[anthropic.Anthropic]:
    with server.claude(tenant.headers["authorization"].removeprefix("Bearer ")) as made:
        yield made


def upload(claude: anthropic.Anthropic, name: str = "a.pdf", content: bytes = b"%PDF") -> Any:
    return claude.beta.files.upload(file=(name, content, "application/pdf"))


def test_the_official_client_uploads_reads_and_deletes_a_file(claude, tenant):
    made = claude.beta.files.upload(file=("notes.txt", b"hello"), expires_in_seconds=7_776_000)
    assert (made.filename, made.mime_type, made.size_bytes, made.type) == ("notes.txt", "text/plain", 5, "file")
    assert made.expires_at is not None and (made.expires_at - made.created_at).total_seconds() == 7_776_000
    assert claude.beta.files.retrieve_metadata(made.id) == made
    assert claude.beta.files.download(made.id).read() == b"hello"
    assert tenant.get(f"/v1/files/{made.id}").json()["purpose"] == "user_data"  # for OpenAI's clients
    deleted = claude.beta.files.delete(made.id)
    assert (deleted.id, deleted.type) == (made.id, "file_deleted")
    with pytest.raises(anthropic.NotFoundError) as raised:
        claude.beta.files.retrieve_metadata(made.id)
    assert raised.value.request_id


def test_files_are_listed_in_pages(claude, tenant):
    assert list(claude.beta.files.list()) == []
    ids = [upload(claude, f"{number}.pdf").id for number in range(5)][::-1]
    assert [file.id for file in claude.beta.files.list(limit=2)] == ids
    assert [file.id for file in claude.beta.files.list(ids=[ids[3], "file-none", ids[3]])] == [ids[3]]
    page = tenant.get("/v1/files", params={"after_id": ids[1], "limit": 2}, headers=VERSION).json()
    assert [file["id"] for file in page["data"]] == ids[2:4] and page["has_more"] and page["last_id"] == ids[3]
    page = tenant.get("/v1/files", params={"before_id": ids[4], "limit": 2}, headers=VERSION).json()
    assert [file["id"] for file in page["data"]] == ids[2:4] and page["next_page"] is None


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"data": {"purpose": "batch"}}, "purpose"),
        ({"data": {"expires_in_seconds": "60"}}, "expires_in_seconds"),
        ({"data": {"expires_in_seconds": "x"}}, "expires_in_seconds"),
    ],
)
def test_a_form_that_is_not_anthropics_is_refused(tenant, form, param):
    answer = tenant.post("/v1/files", files={"file": ("a", b"x")}, headers=VERSION, **form)
    error = answer.json()
    assert (answer.status_code, error["type"]) == (400, "error") and param in error["error"]["message"]


def test_two_ways_to_name_a_page_are_refused(tenant):
    answer = tenant.get("/v1/files", params={"after_id": "a", "page": "page_b"}, headers=VERSION)
    assert answer.status_code == 400 and answer.json()["error"]["type"] == "invalid_request_error"


def test_parameters_of_the_other_api_are_ignored_with_a_warning(tenant):
    theirs = {"purpose": "batch", "order": "asc", "limit": "5"}
    answer = tenant.get("/v1/files", params=theirs, headers=VERSION)
    assert (answer.status_code, answer.headers["x-kvarn-ignored"]) == (200, "order, purpose")
    answer = tenant.get("/v1/files", params={"after_id": "file-a", "ids[]": "file-b", "order": "asc"})
    assert (answer.status_code, answer.headers["x-kvarn-ignored"]) == (200, "after_id, ids")
    assert "x-kvarn-ignored" not in tenant.get("/v1/files", params={"limit": 5}, headers=VERSION).headers
