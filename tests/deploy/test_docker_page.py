"""Commands of the page about Docker. No Docker engine runs here: they are read as Docker reads them, and what they name
must be there. `make image-test` runs what the first `docker run` runs.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
import yaml

from kvarn.cli.main import app
from kvarn.config.load import load_config

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/start/docker.md"
CONTAINERFILE = (ROOT / "deploy/image/Containerfile").read_text()


def _commands() -> Iterator[list[str]]:
    """Each command of Docker in the page, in its blocks and in its sentences, without the word `docker`."""
    text = PAGE.read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    sentences = re.findall(
        r"`(docker [^`]* [^`]*)`", re.sub(r"^```sh\n.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    )
    for line in "\n".join([*blocks, *sentences]).replace("\\\n", " ").splitlines():
        for command in re.findall(r"docker [^)]*", line):
            yield shlex.split(command)[1:]


COMMANDS = list(_commands())


def _of(*words: str) -> list[list[str]]:
    found = [command[len(words) :] for command in COMMANDS if tuple(command[: len(words)]) == words]
    assert found, words
    return found


def _parse_kvarn(arguments: list[str]) -> None:
    """Parse a command as `kvarn` does, without running it."""
    context = typer.main.get_command(app).make_context("kvarn", list(arguments))
    name, command, rest = context.command.resolve_command(context, [*context._protected_args, *context.args])
    assert command is not None
    command.make_context(name, rest, context)


def test_builds_name_files_and_arguments_that_are_there() -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("-f", dest="file", required=True)
    parser.add_argument("-t", dest="tag", required=True)
    parser.add_argument("--build-arg", action="append", default=[])
    parser.add_argument("context")
    for arguments in _of("build"):
        build = parser.parse_args(arguments)
        assert (ROOT / build.file).exists() and build.context == "."
        for given in build.build_arg:
            name, value = given.split("=")
            assert f"ARG {name}=" in CONTAINERFILE and value in CONTAINERFILE


def test_runs_give_options_that_kvarn_and_the_image_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    for flag in ("--detach", "--rm"):
        parser.add_argument(flag, action="store_true")
    for flag in ("--name", "--gpus", "--shm-size", "--entrypoint"):
        parser.add_argument(flag)
    for flag in ("--publish", "--volume", "--env"):
        parser.add_argument(flag, action="append", default=[])
    parser.add_argument("image")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    tags = {command[command.index("-t") + 1] for command in _of("build")}
    monkeypatch.chdir(tmp_path)
    for command in _of("run"):
        run = parser.parse_args(command)
        assert run.image in tags
        for published in run.publish:
            assert f"EXPOSE {published.rpartition(':')[2]}\n" in CONTAINERFILE
        inside = {volume.split(":")[1]: volume.split(":")[0] for volume in run.volume}
        assert "VOLUME /data\n" in CONTAINERFILE and "/data" in inside
        with monkeypatch.context() as variables:
            for name, value in (given.split("=") for given in run.env):
                variables.setenv(name, value)
            warnings: list[str] = []
            load_config(warn=warnings.append)
            assert warnings == []
        arguments = [_there(argument, inside, tmp_path) for argument in run.arguments]
        _parse_kvarn(["serve", *arguments])


def _there(argument: str, inside: dict[str, str], folder: Path) -> str:
    """A file of the container that an argument names, as one of this machine; it must be mounted."""
    if not argument.startswith("/"):
        return argument
    assert any(argument == mounted or argument.startswith(f"{mounted}/") for mounted in inside), argument
    file = folder / argument.strip("/").replace("/", "-")
    file.touch()
    return str(file)


def test_programs_that_run_in_the_container_are_in_it() -> None:
    for name, program, *arguments in _of("exec"):
        assert name == "kvarn"
        if program == "kvarn":
            _parse_kvarn(arguments)
        else:
            assert program in ("cat", "rm") and arguments[0].startswith("/data/")


def test_stop_waits_longer_than_the_server_drains() -> None:
    ((_, time, name),) = _of("stop")
    assert name == "kvarn" and float(time) > load_config().gateway.drain_timeout_s


def test_compose_is_given_files_services_and_profiles_that_are_there() -> None:
    text = (ROOT / "deploy/compose/compose.yaml").read_text()
    services = yaml.safe_load(text)["services"]
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("-f", dest="files", action="append", required=True)
    parser.add_argument("--profile")
    parser.add_argument("verb", choices=("up", "down", "exec"))
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    for command in _of("compose"):
        compose = parser.parse_args(command)
        assert all((ROOT / file).exists() for file in compose.files)
        assert compose.profile in (None, *(name for each in services.values() for name in each.get("profiles", ())))
        if compose.verb == "exec":
            assert compose.arguments[0] in services
        else:
            assert set(compose.arguments) <= {"--build", "--detach", "--volumes"}


def test_services_of_the_table_are_those_of_compose() -> None:
    services = yaml.safe_load((ROOT / "deploy/compose/compose.yaml").read_text())["services"]
    rows = re.findall(r"^\| `(\w+)` \|.*?(?:<http://localhost:(\d+)>)? \|$", PAGE.read_text(), re.MULTILINE)
    published = {
        name: next(iter(service.get("ports", [""]))).split(":")[-1]
        for name, service in services.items()
        if not name.startswith("settings")
    }
    assert dict(rows) == published


def test_each_variable_of_compose_is_in_the_page() -> None:
    text = "".join((ROOT / "deploy/compose" / name).read_text() for name in ("compose.yaml", "gpu.yaml"))
    variables = set(re.findall(r"\$\{(\w+):-", text))
    assert variables and all(f"`{name}" in PAGE.read_text() for name in variables)
