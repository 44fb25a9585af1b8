"""The console's files, through an application around a folder of the test's own."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from kvarn.gateway.console import assets
from kvarn.gateway.console.assets import built_assets
from kvarn.gateway.errors import add_error_handlers
from kvarn.gateway.record import new_record, plain_request, without_body
from kvarn.gateway.static_files import Assets

SCRIPT = b"console.log('kvarn');\n" * 20
PAGE = b'<!doctype html><html><head><title>Kvarn</title><script src="./assets/main-1f.js"></script></head></html>'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_bytes(PAGE)
    (tmp_path / "assets" / "main-1f.js").write_bytes(SCRIPT)
    (tmp_path / "assets" / "main-1f.js.gz").write_bytes(gzip.compress(SCRIPT))
    (tmp_path / "robots.txt").write_text("User-agent: *\nDisallow: /\n")
    return tmp_path


@pytest.fixture
def browser(folder: Path) -> Callable[..., httpx.AsyncClient]:
    """`browser(root_path)`: asks an application that serves the folder."""

    def make(root_path: str = "", **headers: str) -> httpx.AsyncClient:
        app = FastAPI(redirect_slashes=False)
        app.root_path = root_path
        app.include_router(assets.router)
        add_error_handlers(app)
        read = Assets.read(folder)
        app.dependency_overrides[built_assets] = lambda: read

        async def recorded(scope: Scope, receive: Receive, send: Send) -> None:
            plain = plain_request({**scope, "root_path": root_path})
            new_record(plain)
            await app(plain, receive, without_body(send) if scope["method"] == "HEAD" else send)

        transport = httpx.ASGITransport(recorded)
        return httpx.AsyncClient(transport=transport, base_url="http://gateway", headers=headers)

    return make


def _resolve(document: str, base: str) -> str:
    """A relative address as browsers resolve it (empty segments count, unlike with urljoin)."""
    segments = document.split("/")[:-1]
    for step in base.strip("/").split("/"):
        segments = segments[:-1] if step == ".." else segments
    return "/".join(segments) + "/"


async def test_the_console_is_found_without_its_slash_whatever_prefix_a_proxy_adds(browser) -> None:
    async with browser() as client:
        answer = await client.get("/console?next=a%20b%0d%0aset-cookie:x")
        assert answer.status_code == 307
        location = answer.headers["location"]
        assert location == "console/?next=a%20b%0d%0aset-cookie:x", "relative, and nothing of it is decoded"
        assert httpx.URL("https://proxy/llm/console").join(location).path == "/llm/console/"


@pytest.mark.parametrize(
    "path", ["/console/", "/console/requests", "/console/requests/", "/console/a/b//c", "/console//", "/console/a%2fb"]
)
@pytest.mark.parametrize("root_path", ["", "/llm", "/a/console"])
async def test_every_path_gives_the_page_with_a_base_that_leads_to_the_console(browser, path, root_path) -> None:
    async with browser(root_path) as client:
        asked = root_path + path
        answer = await client.get(asked)
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-cache")
    base = answer.text.partition('<base href="')[2].partition('"')[0]
    assert answer.text.index("<base") < answer.text.index("<script"), "before the first relative address"
    assert _resolve(f"/prefix{asked}", base) == f"/prefix{root_path}/console/"


async def test_a_file_with_a_hashed_name_is_kept_for_ever_and_compressed_where_that_is_taken(browser) -> None:
    async with browser() as client:
        plain = await client.get("/console/assets/main-1f.js", headers={"accept-encoding": "identity"})
        packed = await client.get("/console/assets/main-1f.js", headers={"accept-encoding": "br, gzip;q=0.5"})
        refused = await client.get("/console/assets/main-1f.js", headers={"accept-encoding": "gzip;q=0"})
    assert plain.content == packed.content == refused.content == SCRIPT
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers and "content-encoding" not in refused.headers
    assert plain.headers["etag"] != packed.headers["etag"]
    assert {each.headers["vary"] for each in (plain, packed)} == {"accept-encoding"}
    assert "immutable" in plain.headers["cache-control"]
    assert plain.headers["content-type"] == "text/javascript; charset=utf-8"


async def test_a_file_that_an_older_page_asks_for_is_missing_rather_than_the_page(browser) -> None:
    async with browser() as client:
        for path in ("main-00.js", "main-1f.js.gz", "%2e%2e/index.html", "%2e%2e/%2e%2e/assets.py"):
            gone = await client.get(f"/console/assets/{path}")
            assert (gone.status_code, gone.json()["error"]["code"]) == (404, "unknown_asset"), path
            assert gone.headers["cache-control"] == "no-store", path
        folder = await client.get("/console/assets/")
    assert (folder.status_code, folder.headers["cache-control"]) == (200, "no-cache"), "a path without a file"


@pytest.mark.parametrize("path", ["/console/", "/console/assets/main-1f.js", "/console/robots.txt"])
async def test_what_has_not_changed_is_not_sent_again(browser, path) -> None:
    async with browser() as client:
        etag = (await client.get(path)).headers["etag"]
        for header in (etag, f"W/{etag}", f'"other", {etag}', "*"):
            answer = await client.get(path, headers={"if-none-match": header})
            assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", etag)
        assert (await client.get(path, headers={"if-none-match": '"other"'})).status_code == 200


async def test_head_has_the_headers_of_get_and_a_range_gets_the_whole(browser) -> None:
    async with browser() as client:
        head, get = await client.head("/console/"), await client.get("/console/")
        part = await client.get("/console/assets/main-1f.js", headers={"range": "bytes=0-3"})
    assert head.headers == get.headers and head.content == b""
    assert (part.status_code, part.content) == (200, SCRIPT)


async def test_pages_and_files_allow_no_script_from_elsewhere_and_no_frame(browser) -> None:
    async with browser() as client:
        for path in ("/console/", "/console/assets/main-1f.js"):
            headers = (await client.get(path)).headers
            policy = headers["content-security-policy"]
            assert "default-src 'self'" in policy and "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert headers["x-frame-options"] == "DENY" and headers["x-content-type-options"] == "nosniff"


async def test_no_path_leaves_the_folder(browser, folder: Path) -> None:
    (folder.parent / "secret.txt").write_text("secret")
    async with browser() as client:
        for path in (
            "..%2fsecret.txt",
            "%2e%2e%2fsecret.txt",
            "..%5csecret.txt",
            "%00",
            "assets%2f..%2f..%2fsecret.txt",
        ):
            assert "secret" not in (await client.get(f"/console/{path}")).text


async def test_unknown_data_is_no_page(browser) -> None:
    async with browser() as client:
        for path in ("/console/api", "/console/api/", "/console/api/nothing"):
            answer = await client.get(path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_url")


async def test_an_installation_without_the_files_says_so(browser, folder: Path) -> None:
    (folder / "index.html").unlink()
    async with browser() as client:
        answer = await client.get("/console/")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "console_not_built")
