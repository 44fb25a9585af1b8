"""The first example of docs/guides/mcp.md runs as it is printed: the server, the settings, the request."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import yaml

from gateway_fixtures import GatewayServer, wait_for
from kvarn.config.tools import ToolsConfig
from scripted_answers import script

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "mcp.md"


def test_the_first_server_of_the_guide_is_used(
    serve: Callable[..., AbstractContextManager[GatewayServer]], tmp_path: Path
) -> None:
    pages = re.findall(r"^```(?:python|yaml)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    program, settings, request = pages[:3]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    (tmp_path / "weather.py").write_text(program.replace("9000", port))
    running = subprocess.Popen([sys.executable, "weather.py"], cwd=tmp_path, stderr=subprocess.DEVNULL)

    def listens() -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", int(port)), 1):
            return True
        return False

    try:
        wait_for(listens, "the server of the guide to listen")
        tools = ToolsConfig.model_validate(yaml.safe_load(settings.replace("9000", port))["tools"])
        with serve(config={"tools": tools}) as server:
            script(server, '{"city": "Oslo"}}\n</tool_call>', "Sun, 21 degrees.")  # the choice began the call
            here = request.replace("http://127.0.0.1:8000", server.url).replace("kvarn-demo", "tiny")
            done = subprocess.run([sys.executable, "-c", here], capture_output=True, text=True, check=False)
    finally:
        running.kill()
        running.wait()
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        'forecast {"city": "Oslo"} Tomorrow in Oslo: sun, 21 degrees.',
        "Sun, 21 degrees.",
    ]
