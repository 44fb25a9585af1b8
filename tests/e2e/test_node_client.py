"""The official OpenAI client for Node, against a real server with the demo model."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "node"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the scripts and the client beside them."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed: the client for Node is not tested")
    folder = tmp_path_factory.mktemp("node")
    for script in SCRIPTS.iterdir():
        shutil.copy(script, folder)
    command = ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        pytest.skip(f"npm could not install the client for Node: {done.stderr[-500:]}")
    return folder


def test_the_client_for_node_works_unchanged(server, installed):
    command = ["node", "client.mjs", server.url, "none"]
    done = subprocess.run(command, cwd=installed, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
