"""The cache folder of the suite: environments of the peers, their copies of the models, logs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.models import Shape
from benchmarks.server import reason_in

TORCH = "torch==2.13.0"
"""The version Kvarn is measured with: all that use torch get the same. Asked for by number, so that an index of CPU
builds can serve it."""
PREPARE_TIMEOUT_S = 3600.0


class PrepareError(Exception):
    """An engine could not be installed or its model not be converted; the message says what failed and where."""


@dataclass(frozen=True)
class Workshop:
    """Paths, and commands of the preparation."""

    cache: Path
    models: Path
    """Folder of the made checkpoints, shared with `benchmarks.run`."""

    def folder(self, name: str) -> Path:
        """An engine's own folder."""
        folder = self.cache / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def log(self, name: str) -> Path:
        return self.folder("logs") / f"{name}.log"

    def home(self) -> dict[str, str]:
        """Environment that keeps a peer's caches here and the peer off the network."""
        home = str(self.folder("home"))
        return {"HOME": home, "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "TOKENIZERS_PARALLELISM": "false"}

    def checkpoint(self, shape: Shape) -> Path:
        """The folder of a shape's made checkpoint, or where it will be."""
        return self.models / shape.name

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
                    ["nice", *words],
                    stdout=output,
                    stderr=output,
                    check=True,
                    timeout=PREPARE_TIMEOUT_S,
                    env=os.environ | dict(environment or {}),
                )
            except (OSError, subprocess.SubprocessError) as error:
                why = f"exit code {error.returncode}" if isinstance(error, subprocess.CalledProcessError) else error
            else:
                return
        raise PrepareError(f"{Path(words[0]).name} failed ({why}): {reason_in(path)} (all of it: {path})")

    def environment(self, name: str, requirements: Sequence[str]) -> Environment:
        """A virtual environment of these requirements, which may not be made yet."""
        return Environment(self, self.folder(name) / "venv", tuple(requirements))


@dataclass(frozen=True)
class Environment:
    """A virtual environment of one peer."""

    shop: Workshop
    folder: Path
    requirements: tuple[str, ...]

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def is_whole(self) -> bool:
        """It was made with exactly these requirements."""
        stamp = self.folder / "installed.json"
        return stamp.exists() and json.loads(stamp.read_text(encoding="utf-8")) == list(self.requirements)

    def create(self) -> None:
        self.shop.run([sys.executable, "-m", "venv", "--clear", self.folder], f"install-{self.folder.parent.name}")

    def pip(self, *arguments: str) -> None:
        self.shop.run([self.python, "-m", "pip", *arguments], f"install-{self.folder.parent.name}")

    def finish(self) -> None:
        """Note that it is whole."""
        (self.folder / "installed.json").write_text(json.dumps(self.requirements), encoding="utf-8")

    def ensure(self, *, without: str | None = None) -> Environment:
        """Make it; return at once where it is there. `without` is uninstalled again."""
        if not self.is_whole:
            self.create()
            self.pip("install", *self.requirements)
            if without is not None:
                self.pip("uninstall", "--yes", without)
            self.finish()
        return self

    def site_packages(self) -> Path:
        return next(self.folder.glob("lib/python*/site-packages"))


def converter(shop: Workshop) -> Environment:
    """The environment that makes the peers' copies of the models. No engine runs in it, so no engine's size counts it.
    Raises PrepareError."""
    requirements = (TORCH, "optimum-intel[openvino]==2.2.0", "sentencepiece")
    # Nothing here looks at pictures, and a torchvision that does not fit the torch breaks transformers.
    return shop.environment("converter", requirements).ensure(without="torchvision")


def processor_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Instruction sets the processor has; empty where the system does not tell."""
    lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines() if cpuinfo.exists() else []
    return next((frozenset(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), frozenset())


def multiplies_bfloat16(flags: frozenset[str]) -> bool:
    """The processor multiplies bfloat16 itself; elsewhere torch is many times slower in it than in float32."""
    return bool(flags & {"avx512_bf16", "amx_bf16"})


def cores() -> list[str]:
    """Cores this process may use; every engine gets a thread on each."""
    return [str(core) for core in sorted(os.sched_getaffinity(0))]


def tool(name: str) -> str:
    """Path of a build tool. Raises PrepareError where it is not installed."""
    found = shutil.which(name)
    if found is None:
        raise PrepareError(f"{name} is not installed: it is needed to build this engine")
    return found
