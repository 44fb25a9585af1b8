"""OpenVINO GenAI: its continuous-batching pipeline behind a server of ours, since it has none that takes token ids."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.converting import converter
from benchmarks.peers.engines.base import KV_GIB, MAX_SEQS, PREPARE, Case, Installed, Launch, Precision
from benchmarks.peers.sizes import installed_size
from benchmarks.peers.workshop import ROOT, Environment, Workshop, cores, multiplies_bfloat16, processor_flags

REQUIREMENTS = ("openvino-genai==2026.4.1",)
WEIGHT_FORMATS = {Precision.BF16: "fp16", Precision.INT8: "int8", Precision.INT4: "int4"}


@dataclass(frozen=True)
class OpenVino:
    """`ContinuousBatchingPipeline` with prefix caching."""

    name: str = "openvino"
    title: str = "OpenVINO GenAI"

    def precision_note(self, precision: Precision) -> str | None:
        weights = f"weights exported as {WEIGHT_FORMATS[precision]}"
        flags = processor_flags()
        return f"{weights}, computes in {compute_precision(flags)}, KV cache {kv_precision(precision, flags)}"

    def install(self, shop: Workshop) -> None:
        self._environment(shop).ensure(shop, REQUIREMENTS, "install-openvino")

    def convert(self, shop: Workshop, case: Case) -> None:
        model = self._model(shop, case)
        if model.exists():
            return
        partial = model.with_name(model.name + ".partial")
        command = [converter(shop).folder / "bin" / "optimum-cli", "export", "openvino"]
        command += ["--model", shop.make_checkpoint(case.shape), "--task", "text-generation-with-past"]
        command += ["--weight-format", WEIGHT_FORMATS[case.precision], partial]
        shop.run(command, f"convert-openvino-{case.label}", shop.home())
        partial.rename(model)

    def obstacle(self, shop: Workshop, case: Case) -> str | None:
        if not self._environment(shop).has(REQUIREMENTS):
            return f"not installed: {PREPARE}"
        return None if self._model(shop, case).exists() else f"no {case.precision} copy of {case.shape.name}: {PREPARE}"

    def launch(self, shop: Workshop, case: Case, port: int) -> Launch:
        flags = processor_flags()
        command = [str(self._environment(shop).python), "-m", "benchmarks.peers.wrappers.openvino_server"]
        command += ["--model", str(self._model(shop, case)), "--port", str(port), "--threads", str(len(cores()))]
        command += ["--max-seqs", str(MAX_SEQS), "--kv-gib", str(KV_GIB), "--compute", compute_precision(flags)]
        command += ["--kv", kv_precision(case.precision, flags)]
        return Launch(command, shop.home(), folder=ROOT)

    def installed(self, shop: Workshop) -> Installed:
        return installed_size(self._environment(shop).python, ["openvino-genai"])

    def _environment(self, shop: Workshop) -> Environment:
        return Environment(shop.folder(self.name) / "venv")

    def _model(self, shop: Workshop, case: Case) -> Path:
        return shop.folder(self.name) / "models" / case.label


def compute_precision(flags: frozenset[str]) -> str:
    """bf16 where the processor multiplies it, else f32: OpenVINO then widens 16-bit weights when it loads them."""
    return "bf16" if multiplies_bfloat16(flags) else "f32"


def kv_precision(precision: Precision, flags: frozenset[str]) -> str:
    """16 bits in the bf16 class, 8 in the others, as it is shipped."""
    if precision is not Precision.BF16:
        return "u8"
    return "bf16" if multiplies_bfloat16(flags) else "f16"
