"""The documentation at `/docs/`, through an application around a folder of the test's own."""

from __future__ import annotations

import gzip
import hashlib
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from kvarn.gateway import documentation
from kvarn.gateway.documentation import built_site, is_documentation
from kvarn.gateway.errors import add_error_handlers
from kvarn.gateway.record import new_record, plain_request, without_body
from kvarn.gateway.static_files import Assets

PAGE = b"<html><script>place=1</script><a href='../limits/'>limits</a></html>"
SCRIPT = b"console.log('search');\n" * 20


@pytest.fixture
def browser(tmp_path: Path) -> Callable[..., httpx.AsyncClient]:
    """`browser(root_path, is_built)`: asks an application that serves a site, or one without."""
    (tmp_path / "guides/limits").mkdir(parents=True)
    (tmp_path / "index.html.gz").write_bytes(gzip.compress(PAGE))
    (tmp_path / "guides/limits/index.html.gz").write_bytes(gzip.compress(PAGE))
    (tmp_path / "search.js.gz").write_bytes(gzip.compress(SCRIPT))

    def make(root_path: str = "", is_built: bool = True) -> httpx.AsyncClient:
        app = FastAPI(redirect_slashes=False, docs_url=None, redoc_url=None)
        app.root_path = root_path
        app.include_router(documentation.router)
        add_error_handlers(app)
        site = Assets.read(tmp_path) if is_built else Assets()
        app.dependency_overrides[built_site] = lambda: site

        async def recorded(scope: Scope, receive: Receive, send: Send) -> None:
            plain = plain_request({**scope, "root_path": root_path})
            new_record(plain)
            await app(plain, receive, without_body(send) if scope["method"] == "HEAD" else send)

        return httpx.AsyncClient(transport=httpx.ASGITransport(recorded), base_url="http://gateway")

    return make


@pytest.mark.parametrize("root_path", ["", "/llm"])
@pytest.mark.parametrize(
    ("asked", "leads_to"), [("/docs", "/docs/"), ("/docs/guides/limits?q=1", "/docs/guides/limits/?q=1")]
)
async def test_a_folders_page_is_found_without_its_slash_whatever_prefix_a_proxy_adds(
    browser, root_path, asked, leads_to
) -> None:
    async with browser(root_path) as client:
        answer = await client.get(root_path + asked)
        assert answer.status_code == 307
        there = httpx.URL(f"https://proxy/prefix{root_path}{asked}").join(answer.headers["location"])
        assert there == httpx.URL(f"https://proxy/prefix{root_path}{leads_to}")
        page = await client.get(root_path + leads_to)
    assert (page.status_code, page.content) == (200, PAGE)
    assert page.headers["content-type"] == "text/html; charset=utf-8"


async def test_files_are_compressed_where_that_is_taken_and_not_sent_twice(browser) -> None:
    async with browser() as client:
        packed = await client.get("/docs/search.js", headers={"accept-encoding": "gzip"})
        plain = await client.get("/docs/search.js", headers={"accept-encoding": "identity"})
        again = await client.get("/docs/search.js", headers={"if-none-match": packed.headers["etag"]})
    assert packed.content == plain.content == SCRIPT
    assert packed.headers["content-encoding"] == "gzip" and "content-encoding" not in plain.headers
    assert (again.status_code, again.content) == (304, b"")


async def test_a_page_runs_its_own_scripts_and_no_others(browser) -> None:
    own = b64encode(hashlib.sha256(b"place=1").digest()).decode()
    async with browser() as client:
        page = (await client.get("/docs/")).headers["content-security-policy"]
        script = (await client.get("/docs/search.js")).headers["content-security-policy"]
    assert f"script-src 'self' 'sha256-{own}';" in page and "script-src 'self';" in script
    assert "default-src 'self'" in page and "frame-ancestors 'none'" in page


@pytest.mark.parametrize("path", ["nothing", "guides/", "..%2f..%2fapp.py", "search.js.gz", "guides/limits/x"])
async def test_what_the_site_has_not_is_an_unknown_url(browser, path) -> None:
    async with browser() as client:
        answer = await client.get(f"/docs/{path}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_url")


async def test_without_a_built_site_the_operations_are_the_documentation(browser) -> None:
    async with browser(is_built=False) as client:
        for path in ("/docs", "/docs/", "/redoc"):
            answer = await client.get(path)
            assert answer.status_code == 307
            assert httpx.URL(f"http://gateway{path}").join(answer.headers["location"]).path == "/docs/api", path
        operations = await client.get("/docs/api")
        missing = await client.get("/docs/guides/limits/")
    assert operations.status_code == 200 and "<h1>Kvarn API</h1>" in operations.text
    policy = operations.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in policy and "script-src 'self' 'sha256-" in policy, "it holds a key"
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "documentation_not_built")


def test_only_its_own_paths_need_no_key() -> None:
    assert all(map(is_documentation, ("/docs", "/docs/api", "/docs/guides/limits", "/redoc")))
    assert not any(map(is_documentation, ("/docsx", "/v1/docs", "/redoc/x", "/")))
