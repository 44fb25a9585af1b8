"""The console in a real browser; what each scenario does stands in `console/e2e`."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from kept_rows import fill
from kvarn.config.platform import AuthConfig
from kvarn.identity.bootstrap import FILE
from kvarn.store.owner import ANYBODY
from new_tenants import create_organization

E2E = Path(__file__).parents[2] / "console/e2e"
REGISTRY = E2E.parent / "src/pages/registry.ts"
PAGES = re.findall(r'\{ name: "(\w+)"', REGISTRY.read_text())
ALONE = [path.stem for path in sorted(E2E.glob("*.mjs")) if path.stem not in ("run", "pages")]
"""Scenarios that need nothing but a server."""
PREFIX = "/llm"
SITE = Path(str(files("kvarn.gateway"))) / "site"


@pytest.fixture(scope="module")
def keyed(serve: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A gateway below a path that asks for keys and keeps 100,000 requests: its URL, and an administrator's key."""
    data = tmp_path_factory.mktemp("keyed")

    def prepare(server: Any) -> None:
        server.configure(auth=AuthConfig(mode="keys"), data_dir=str(data))
        server.authenticator = None

    serving: AbstractContextManager[Any] = serve(prepare, root_path=PREFIX)
    with serving as server:

        async def keep_many() -> None:
            store = server.gateway.store
            blue = await create_organization(store, "globex")
            await fill(store, ANYBODY.owner, blue.owner, start_us=int(time.time() - 1800) * 1_000_000)

        server.do(keep_many())
        yield server.url + PREFIX, (data / FILE).read_text().strip()


@pytest.mark.parametrize("scenario", ALONE)
def test_a_scenario(scenario: str, browser: Any, demo: str) -> None:
    assert browser.run(scenario, demo) == ""


def test_every_page_opens_in_both_themes_and_widths(browser: Any, demo: str) -> None:
    assert len(PAGES) >= 10
    assert browser.run("pages", demo, pages=PAGES) == ""


@pytest.mark.parametrize("scenario", ["sign_in", "keyboard", "many_requests"])
def test_a_scenario_with_keys_below_a_path(scenario: str, browser: Any, keyed: tuple[str, str]) -> None:
    url, key = keyed
    assert browser.run(f"keys/{scenario}", url, key=key) == ""


def test_the_documentation_below_a_path(browser: Any, keyed: tuple[str, str]) -> None:
    if not SITE.is_dir():
        pytest.skip("the documentation is not built: `make site`")
    url, _ = keyed
    assert browser.run("keys/documentation", url) == ""
