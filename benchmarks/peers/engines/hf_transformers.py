"""transformers: `generate` over static batches behind a server of ours.

A batch is what waits when the one before has ended. Its continuous batching was slower on two cores when both were
tried, so the kinder form is measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.peers.engines.base import MAX_SEQS, PREPARE, Case, Installed, Launch, Precision
from benchmarks.peers.sizes import installed_size
from benchmarks.peers.workshop import ROOT, TORCH, Environment, Workshop, cores, multiplies_bfloat16, processor_flags

REQUIREMENTS = (TORCH, "transformers==5.23.0")


@dataclass(frozen=True)
class Transformers:
    """`AutoModelForCausalLM.generate`."""

    name: str = "transformers"
    title: str = "transformers"

    def precision_note(self, precision: Precision) -> str | None:
        return f"`dtype={weights_dtype()}`, static batches" if precision is Precision.BF16 else None

    def install(self, shop: Workshop) -> None:
        self._environment(shop).ensure(shop, REQUIREMENTS, "install-transformers")

    def convert(self, shop: Workshop, case: Case) -> None:
        shop.make_checkpoint(case.shape)

    def obstacle(self, shop: Workshop, case: Case) -> str | None:
        if not self._environment(shop).has(REQUIREMENTS):
            return f"not installed: {PREPARE}"
        return None if shop.has_checkpoint(case.shape) else f"{case.shape.name} is not made yet: {PREPARE}"

    def launch(self, shop: Workshop, case: Case, port: int) -> Launch:
        command = [str(self._environment(shop).python), "-m", "benchmarks.peers.wrappers.transformers_server"]
        command += ["--model", str(shop.checkpoint_folder(case.shape)), "--port", str(port)]
        command += ["--threads", str(len(cores())), "--max-seqs", str(MAX_SEQS)]
        command += ["--dtype", weights_dtype()]
        return Launch(command, shop.home(), folder=ROOT)

    def installed(self, shop: Workshop) -> Installed:
        return installed_size(self._environment(shop).python, ["transformers", "torch"])

    def _environment(self, shop: Workshop) -> Environment:
        return Environment(shop.folder(self.name) / "venv")


def weights_dtype() -> str:
    """float32 where the processor does not multiply bfloat16: one would choose so."""
    return "bfloat16" if multiplies_bfloat16(processor_flags()) else "float32"
