"""docs/cli.md names every option of `kvarn serve`."""

from __future__ import annotations

import re
from pathlib import Path

from typer.core import TyperGroup
from typer.main import get_command

from kvarn.cli import options

PAGE = (Path(__file__).resolve().parents[2] / "docs/cli.md").read_text(encoding="utf-8")


def test_the_page_names_every_option_of_serve() -> None:
    command = get_command(options.app)
    serve = command.commands["serve"] if isinstance(command, TyperGroup) else command
    names = [name for parameter in serve.params for name in parameter.opts if name.startswith("--")]
    assert set(options.FLAGS) <= set(names)
    missing = [name for name in names if not re.search(rf"`[^`]*{name}(?![\w-])", PAGE)]
    assert not missing, f"docs/cli.md does not name {', '.join(missing)}"
