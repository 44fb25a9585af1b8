"""`kvarn sandbox`: packages that code of models may import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from kvarn.cli.application import application
from kvarn.cli.output import EXIT_FAILED, EXIT_USAGE, stop
from kvarn.cli.values import ConfigPath
from kvarn.config.load import ConfigError, load_config

app = application(help="Install packages that code of models may import.", no_args_is_help=True)

Packages = Annotated[list[str], typer.Argument(help="Packages, as pip takes them: numpy 'pandas<3'.")]


@app.callback()
def sandbox() -> None:
    """Install packages that code of models may import."""


@app.command("install")
def install(packages: Packages, config: ConfigPath = None) -> None:
    """Install packages and what they need with pip, for this Python, into sandbox.code_packages. New containers have
    them; see docs/operate/sandbox.md."""
    from kvarn.tools.code_interpreter.containers import packages_folder

    try:
        loaded = load_config(config)
    except ConfigError as error:
        stop(str(error), EXIT_USAGE)
    folder = packages_folder(loaded.sandbox, Path(loaded.data_dir).expanduser())
    command = [sys.executable, "-m", "pip", "install", "--upgrade", "--target", str(folder), *packages]
    # The programs in sandboxes are another user: they shall be able to read the files.
    done = subprocess.run(command, umask=0o022, check=False)
    if done.returncode:
        stop(f"pip did not install the packages: {' '.join(command)} ended with status {done.returncode}", EXIT_FAILED)
    typer.echo(f"installed in {folder}")
