"""Coding agents with the settings that `docs/guides/coding_agents.md` prints for them."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs/guides/coding_agents.md"
PRINTED_URL, PRINTED_MODEL = "http://127.0.0.1:8000", "coder"
FILE, CONTENT, DONE = "hello.txt", "hello\n", "The file is written."
"""What each agent is told to write, and what the model says at the end."""


@dataclass(frozen=True)
class Settings:
    """What a section of the page says: files of the home directory, variables, and the command that writes the file."""

    files: dict[str, str]
    variables: dict[str, str]
    command: list[str]


def printed_settings(title: str, url: str, model: str) -> Settings:
    """The settings under a heading of the page, for a server and a model of its own."""
    section = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert section is not None, f"{PAGE} has no section {title!r}"
    text = re.sub(rf"\b{PRINTED_MODEL}\b", model, section[1].replace(PRINTED_URL, url))
    files = dict(re.findall(r"^`~/([^`]+)`[^\n]*:\n\n```\w+\n(.*?)```", text, re.MULTILINE | re.DOTALL))
    lines = [line for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    (command,) = (shlex.split(line) for line in lines if FILE in line)
    return Settings(files, variables_of(lines), command)


def variables_of(lines: list[str]) -> dict[str, str]:
    """The environment variables that lines of a shell export."""
    words = [word for line in lines if line.startswith("export ") for word in shlex.split(line)[1:]]
    return dict(word.split("=", 1) for word in words)


@dataclass(frozen=True)
class Agent:
    """One that writes a file by a tool, or with `tool` None by its text."""

    name: str
    """Its name as a model of the server."""
    title: str
    """Its heading in the page."""
    tool: str | None
    arguments: dict[str, Any]
    obeys_proxy: bool = True
    """Whether it sends requests to `NO_PROXY` hosts directly although there is a proxy."""
    may_ask: tuple[str, ...] = ()
    """Hosts that no setting keeps it from asking."""

    def turns(self, folder: Path) -> list[str]:
        """What a model says so that the agent writes the file."""
        if self.tool is None:
            return [f"{FILE}\n```\n{CONTENT}```\n"]
        arguments = {name: text.replace("FOLDER", str(folder)) for name, text in self.arguments.items()}
        call = json.dumps({"name": self.tool, "arguments": arguments})
        return [f"<tool_call>\n{call}\n</tool_call>", DONE]


AGENTS = (
    Agent("claude", "Claude Code", "Write", {"file_path": f"FOLDER/{FILE}", "content": CONTENT}),
    Agent("codex", "Codex CLI", "exec_command", {"cmd": f"echo {CONTENT.strip()} > {FILE}"}),
    Agent(
        "opencode",
        "opencode",
        "write",
        {"filePath": f"FOLDER/{FILE}", "content": CONTENT},
        may_ask=("registry.npmjs.org:443",),
    ),
    Agent("qwen", "Qwen Code", "write_file", {"file_path": f"FOLDER/{FILE}", "content": CONTENT}, obeys_proxy=False),
    Agent("aider", "aider", None, {}),
)
