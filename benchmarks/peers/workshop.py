"""The cache folder of the suite: environments of the peers, their copies of the models, logs."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.models import Shape, make_model

ROOT = Path(__file__).resolve().parents[2]
"""The repository."""

TORCH = "torch==2.13.0"
"""The version Kvarn is measured with: all that use torch get the same. Asked for by number, so that an index of CPU
builds can serve it."""

PREPARE_TIMEOUT_S = 3600.0


class PrepareError(Exception):
    """An engine could not be installed or its model not be converted; the message says what failed and where."""


@dataclass(frozen=True)
class Workshop:
    """Where everything lies."""

    cache: Path
    models: Path
    """Folder of the made checkpoints, shared with `benchmarks.run`."""

    def folder(self, engine: str) -> Path:
        """An engine's own folder."""
        folder = self.cache / engine
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def log(self, name: str) -> Path:
        """A log file."""
        folder = self.cache / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{name}.log"

    def home(self) -> dict[str, str]:
        """Environment that keeps a peer's caches here and the peer off the network."""
        home = self.cache / "home"
        home.mkdir(parents=True, exist_ok=True)
        return {"HOME": str(home), "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "TOKENIZERS_PARALLELISM": "false"}

    def has_checkpoint(self, shape: Shape) -> bool:
        """The checkpoint is made."""
        return (self.checkpoint_folder(shape) / "config.json").exists()

    def checkpoint_folder(self, shape: Shape) -> Path:
        """Where the checkpoint of a shape is, or will be."""
        return self.models / shape.name

    def make_checkpoint(self, shape: Shape) -> Path:
        """The checkpoint of a shape; made where it is not there."""
        return make_model(shape, self.models)

    def run(self, command: Sequence[str | Path], log: str, environment: Mapping[str, str] | None = None) -> None:
        """Run a command of the preparation at low priority; its output goes to a log.

        Raises:
            PrepareError: It is not there, failed, or took longer than an hour.
        """
        path, words = self.log(log), [str(word) for word in command]
        with path.open("w", encoding="utf-8") as output:
            print("$", *words, file=output, flush=True)
            try:
                subprocess.run(
                    words,
                    stdout=output,
                    stderr=output,
                    check=True,
                    timeout=PREPARE_TIMEOUT_S,
                    env=os.environ | dict(environment or {}),
                    preexec_fn=_be_nice,
                )
            except (OSError, subprocess.SubprocessError) as error:
                failed = error
            else:
                return
        raise PrepareError(f"{Path(words[0]).name} failed ({_why(failed)}): {reason_in(path)} (all of it: {path})")


class Environment:
    """A virtual environment of one peer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "bin" / "python"
        self._stamp = folder / "installed.json"

    def has(self, requirements: Sequence[str]) -> bool:
        """It was made with exactly these requirements."""
        return self._stamp.exists() and json.loads(self._stamp.read_text(encoding="utf-8")) == list(requirements)

    def create(self, shop: Workshop, log: str) -> None:
        """An empty environment."""
        shop.run([sys.executable, "-m", "venv", "--clear", self.folder], log)

    def pip(self, shop: Workshop, log: str, *arguments: str) -> None:
        """Install packages."""
        shop.run([self.python, "-m", "pip", "install", "--disable-pip-version-check", *arguments], log)

    def stamp(self, requirements: Sequence[str]) -> None:
        """Say that it is whole."""
        self._stamp.write_text(json.dumps(list(requirements)), encoding="utf-8")

    def ensure(self, shop: Workshop, requirements: Sequence[str], log: str) -> None:
        """Make it with these requirements; returns at once where it is there."""
        if not self.has(requirements):
            self.create(shop, log)
            self.pip(shop, log, *requirements)
            self.stamp(requirements)

    def site_packages(self) -> Path:
        """Where its packages are."""
        found = sorted(self.folder.glob("lib/python*/site-packages"))
        if not found:
            raise PrepareError(f"{self.folder} is no virtual environment: prepare it first")
        return found[0]


def processor_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Instruction sets the processor has; empty where the system does not tell."""
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("flags"):
                return frozenset(line.partition(":")[2].split())
    return frozenset()


def multiplies_bfloat16(flags: frozenset[str]) -> bool:
    """The processor multiplies bfloat16 itself; elsewhere torch is many times slower in it than in float32."""
    return bool(flags & {"avx512_bf16", "amx_bf16"})


def cores() -> list[int]:
    """Cores this process may use; every engine gets a thread on each."""
    return sorted(os.sched_getaffinity(0))


def is_x86() -> bool:
    """Instruction sets are called as on x86."""
    return platform.machine() in ("x86_64", "AMD64")


def tool(name: str) -> str:
    """Path of a build tool. Raises PrepareError where it is not installed."""
    found = shutil.which(name)
    if found is None:
        raise PrepareError(f"{name} is not installed: it is needed to build this engine")
    return found


ERROR_LINE = re.compile(r"(\b\w*(Error|Exception)\b: .+|\berror: .+|^ERROR: .+|\bfailed to load .+)")
MAX_REASON = 300
NOISE = re.compile(r"^\s*(\[[^\]]*\]|\(\w+ pid=\d+\))\s*")


def reason_in(log: Path) -> str:
    """The line of a log that tells best why a program ended: the first named error, else the last line."""
    told = [found[1] for line in _lines(log) if (found := ERROR_LINE.search(line))]
    return NOISE.sub("", told[0])[:MAX_REASON] if told else last_line(log)


def last_line(log: Path) -> str:
    """What a program said last: where one that goes on has come to."""
    lines = _lines(log)
    return NOISE.sub("", lines[-1])[:MAX_REASON] if lines else "it said nothing"


def _lines(log: Path) -> list[str]:
    if not log.exists():
        return []
    text = log.read_text(encoding="utf-8", errors="replace").replace("\\n", "\n")  # also where a line quotes lines
    lines = [line.strip() for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith("$ ")]  # the command itself is no reason


def _why(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return f"exit code {error.returncode}"
    return "it took too long" if isinstance(error, subprocess.TimeoutExpired) else str(error)


def _be_nice() -> None:
    os.nice(10)
