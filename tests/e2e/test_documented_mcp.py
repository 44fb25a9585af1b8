"""The first example of docs/guides/mcp.md runs as it is printed: the server, the settings, the request. So does the
README's program, which asks that server, too."""

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

ROOT = Path(__file__).parents[2]


def printed(page: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"^```(?:python|yaml)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def run(program: str, server: GatewayServer) -> list[str]:
    here = program.replace("http://127.0.0.1:8000", server.url).replace("kvarn-demo", "tiny")
    done = subprocess.run([sys.executable, "-c", here], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_first_server_of_the_guide_is_used(
    serve: Callable[..., AbstractContextManager[GatewayServer]], tmp_path: Path
) -> None:
    program, settings, request = printed("docs/guides/mcp.md")[:3]
    (readme,) = printed("README.md")
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

        def prepare(server: GatewayServer) -> None:
            server.authenticator = None  # an open server: whoever asks is an administrator

        with serve(prepare, config={"tools": tools}) as server:
            script(server, '{"city": "Oslo"}}\n</tool_call>', "Sun, 21 degrees.")  # the choice began the call
            guide = run(request, server)
            script(
                server,
                *(called("file_search", query="ticket"), "Three crowns."),
                *(called("code_interpreter", code="2 ** 100"), "Some 10 ** 30."),
                "The time to the first token.",
                *(called("weather__forecast", city="Oslo"), "Sun, 21 degrees."),
            )
            told = run(readme, server)
    finally:
        running.kill()
        running.wait()
    assert guide == ['forecast {"city": "Oslo"} Tomorrow in Oslo: sun, 21 degrees.', "Sun, 21 degrees."]
    cached = "The time to the first token."
    assert told == ["Three crowns.", "Some 10 ** 30.", f"{cached} {cached}", "Sun, 21 degrees."]
