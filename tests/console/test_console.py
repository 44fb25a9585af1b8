"""The console in a real browser; what each scenario does stands in `console/e2e`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from kvarn.config.platform import AuthConfig
from kvarn.identity.bootstrap import FILE

E2E = Path(__file__).parents[2] / "console/e2e"
REGISTRY = E2E.parent / "src/pages/registry.ts"
PAGES = re.findall(r'\{ name: "(\w+)"', REGISTRY.read_text())
ALONE = [path.stem for path in sorted(E2E.glob("*.mjs")) if path.stem not in ("run", "pages")]
"""Scenarios that need nothing but a server."""
PREFIX = "/llm"


@pytest.fixture(scope="module")
def keyed(serve: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, Any]]:
    """A gateway below a path that asks for keys: its URL, an administrator's key, and the gateway."""
    data = tmp_path_factory.mktemp("keyed")

    def prepare(server: Any) -> None:
        server.configure(auth=AuthConfig(mode="keys"), data_dir=str(data))
        server.authenticator = None

    serving: AbstractContextManager[Any] = serve(prepare, root_path=PREFIX)
    with serving as server:
        yield server.url + PREFIX, (data / FILE).read_text().strip(), server


@pytest.mark.parametrize("scenario", ALONE)
def test_a_scenario(scenario: str, browser: Any, demo: str) -> None:
    browser.run(scenario, demo)


def test_every_page_opens_in_both_themes_and_widths(browser: Any, demo: str) -> None:
    browser.run("pages", demo, pages=PAGES)


def test_a_key_signs_in_and_out_below_a_path(browser: Any, keyed: Any) -> None:
    url, key, _ = keyed
    browser.run("keys/sign_in", url, key=key)
