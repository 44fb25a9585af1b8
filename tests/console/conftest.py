"""A browser for the console, and two servers: one as `make serve` starts it, one that asks for keys below a path."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from browsers import no_browser
from lines import Lines

CONSOLE = Path(__file__).parents[2] / "console"
READY = re.compile(r"Kvarn serves .+ at (https?://\S+) ")


@dataclass(frozen=True)
class Browser:
    """Chromium, driven by one node process; see `console/e2e/run.mjs`."""

    process: subprocess.Popen[str]
    lines: Lines

    def run(self, scenario: str, server: str, **given: Any) -> str:
        """Run a scenario of `console/e2e`. Returns what went wrong in it; empty: nothing did."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"scenario": scenario, "server": server, "given": given}) + "\n")
        self.process.stdin.flush()
        line = self.lines.next()  # the scenario has an end of its own
        assert line, f"the browser ended with {self.process.wait(30)}"
        outcome = json.loads(line)
        return "" if outcome["ok"] else str(outcome["error"])


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if chromium is None:
        no_browser("chromium is not installed: make services")
    node = shutil.which("node") or no_browser("node is not installed: the console's pages are not tested")
    if not (CONSOLE / "node_modules/playwright-core").is_dir():
        no_browser("playwright-core is not installed: make console-check")
    process = subprocess.Popen(
        [node, "e2e/run.mjs"],
        cwd=CONSOLE,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"CHROMIUM": chromium},
    )
    assert process.stdin is not None and process.stdout is not None
    yield Browser(process, Lines(process.stdout))
    process.stdin.close()
    try:
        process.wait(30)
    finally:
        process.kill()


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a server as `make serve` starts it: the packaged model, open on loopback."""
    command = [Path(sys.executable).with_name("kvarn"), "serve", "--port", "0"]
    environment = os.environ | {"KVARN_DATA_DIR": str(tmp_path_factory.mktemp("demo"))}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    log: list[str] = []
    threading.Thread(target=lambda: log.extend(process.stderr or ()), daemon=True).start()
    assert process.stdout is not None
    lines = Lines(process.stdout)
    try:
        while (found := READY.search(line := lines.next())) is None:
            assert line, f"kvarn serve ended with {process.wait(60)}: {''.join(log)}"
        yield found[1]
        process.terminate()
        process.wait(60)
    finally:
        process.kill()
