"""llama.cpp: its server, built here for this processor from the sources inside the `llama-cpp-python` package."""

from __future__ import annotations

import tarfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.converting import converter
from benchmarks.peers.engines.base import MAX_SEQS, MODEL, PREPARE, Case, Installed, Launch, Precision
from benchmarks.peers.workshop import ROOT, PrepareError, Workshop, cores, tool

VERSION = "0.3.36"
SLOT_TOKENS = 1152
"""Tokens of each of its fixed slots: the longest request has 1,088."""

FILE_TYPES = {Precision.BF16: "BF16", Precision.INT8: "Q8_0", Precision.INT4: "Q4_0"}

ORDERED_TILES = ROOT / "benchmarks" / "peers" / "wrappers" / "ordered_tiles.h"
"""Without it GCC 12 builds AMX code that crashes."""

CMAKE_OPTIONS = (
    f"-DCMAKE_C_FLAGS=-include {ORDERED_TILES}",
    f"-DCMAKE_CXX_FLAGS=-include {ORDERED_TILES}",
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
)


@dataclass(frozen=True)
class LlamaCpp:
    """`llama-server`."""

    name: str = "llama.cpp"
    title: str = "llama.cpp"

    def precision_note(self, precision: Precision) -> str | None:
        return f"GGUF {FILE_TYPES[precision]}, KV cache f16"

    def install(self, shop: Workshop) -> None:
        if self._binary(shop, "llama-server").exists() and self._binary(shop, "llama-quantize").exists():
            return
        source = self._source(shop)
        build = shop.folder(self.name) / "build"
        shop.run([tool("cmake"), "-S", source, "-B", build, *CMAKE_OPTIONS], "configure-llama.cpp")
        targets = ["llama-server", "llama-quantize"]
        shop.run([tool("cmake"), "--build", build, "-j", str(len(cores())), "--target", *targets], "build-llama.cpp")

    def convert(self, shop: Workshop, case: Case) -> None:
        model = self._model(shop, case)
        if model.exists():
            return
        model.parent.mkdir(parents=True, exist_ok=True)
        wide = model.parent / f"{case.shape.name}-{FILE_TYPES[Precision.BF16]}.gguf"
        if not wide.exists():
            partial = wide.with_suffix(".partial")
            source = self._source(shop)
            command = [converter(shop).python, "-m", "benchmarks.peers.wrappers.to_gguf"]
            command += [source, shop.make_checkpoint(case.shape), partial]
            shop.run(command, f"convert-llama.cpp-{case.label}", shop.home() | {"PYTHONPATH": str(ROOT)})
            partial.rename(wide)
        if case.precision is not Precision.BF16:
            partial = model.with_suffix(".partial")
            command = [self._binary(shop, "llama-quantize"), wide, partial, FILE_TYPES[case.precision]]
            shop.run(command, f"convert-llama.cpp-{case.label}")
            partial.rename(model)

    def obstacle(self, shop: Workshop, case: Case) -> str | None:
        if not self._binary(shop, "llama-server").exists():
            return f"not built: {PREPARE}"
        return None if self._model(shop, case).exists() else f"no {case.precision} copy of {case.shape.name}: {PREPARE}"

    def launch(self, shop: Workshop, case: Case, port: int) -> Launch:
        threads = str(len(cores()))
        command = [str(self._binary(shop, "llama-server")), "--model", str(self._model(shop, case)), "--alias", MODEL]
        command += ["--host", "127.0.0.1", "--port", str(port), "--threads", threads, "--threads-batch", threads]
        command += ["--parallel", str(MAX_SEQS), "--ctx-size", str(MAX_SEQS * SLOT_TOKENS), "--cont-batching"]
        command += ["--flash-attn", "on", "--batch-size", "2048", "--ubatch-size", "512"]
        command += ["--no-webui", "--log-verbosity", "1"]
        return Launch(command, shop.home())

    def installed(self, shop: Workshop) -> Installed:
        binary = self._binary(shop, "llama-server")
        if not binary.exists():
            raise PrepareError("llama-server is not built")
        size = binary.stat().st_size
        return Installed(f"llama-cpp-python {VERSION}", size, size)

    def _binary(self, shop: Workshop, name: str) -> Path:
        return shop.folder(self.name) / "build" / "bin" / name

    def _model(self, shop: Workshop, case: Case) -> Path:
        return shop.folder(self.name) / "models" / f"{case.shape.name}-{FILE_TYPES[case.precision]}.gguf"

    def _source(self, shop: Workshop) -> Path:
        """The unpacked sources; fetched where they are not there."""
        folder = shop.folder(self.name)
        source = folder / f"llama_cpp_python-{VERSION}" / "vendor" / "llama.cpp"
        if not source.exists():
            command = [converter(shop).python, "-m", "pip", "download", "--no-deps", "--dest", folder]
            command += ["--no-binary", "llama-cpp-python", f"llama-cpp-python=={VERSION}"]
            shop.run(command, "fetch-llama.cpp")
            with tarfile.open(folder / f"llama_cpp_python-{VERSION}.tar.gz") as archive:
                archive.extractall(folder, filter="data")
        return source
