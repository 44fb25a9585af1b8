"""Commands that pages print exist, with these arguments. Other tests run those that serve, ask and change what runs."""

from __future__ import annotations

import importlib.util
import re

import pytest
import typer
from typer.core import TyperGroup

from kvarn.cli.main import app
from printed_commands import ROOT, printed


def _parse(arguments: list[str]) -> None:
    """Parse a command as `kvarn` does; nothing of it runs. Raises what a wrong one is told."""
    command, name, parent = typer.main.get_command(app), "kvarn", None
    while True:
        context = command.make_context(name, list(arguments), parent)
        command = context.command
        if not isinstance(command, TyperGroup):
            return
        arguments = [*context._protected_args, *context.args]
        if not arguments:  # a command that has others below it, and does something itself
            return
        name, found, arguments = command.resolve_command(context, arguments)
        assert found is not None
        command, parent = found, context


def test_every_printed_kvarn_command_is_one_with_these_options(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("kvarn.yaml", "two.yaml", "cluster.yaml", "conversation.jsonl", "questions.jsonl"):
        (tmp_path / name).touch()  # files that options want to be there
    wrong = []
    commands = list(printed("kvarn"))
    for page, arguments in commands:
        try:
            _parse(arguments)
        except Exception as error:
            wrong.append(f"{page}: kvarn {' '.join(arguments)}: {error!r}")
    assert wrong == []
    assert len(commands) > 60


@pytest.mark.parametrize("program", [".venv/bin/python", "python"])
def test_every_printed_module_and_script_is_there(program) -> None:
    for page, arguments in printed(program):
        if arguments[0] != "-m":
            assert (ROOT / arguments[0]).exists(), page
        elif arguments[1] not in ("pytest", "venv"):
            assert importlib.util.find_spec(arguments[1]) is not None, (page, arguments)


def test_every_printed_make_target_is_one() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    asked = [(page, arguments[0]) for page, arguments in printed("make")]
    assert asked and all(target in targets for _, target in asked), asked
