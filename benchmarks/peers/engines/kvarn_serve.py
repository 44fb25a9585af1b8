"""Kvarn itself: `kvarn serve` of this environment, with the model's settings in a configuration file.

It is told a precision and the size of its cache, nothing else: what is measured is what it does by itself.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.engines.base import KV_GIB, MODEL, PREPARE, Case, Installed, Launch, Precision
from benchmarks.peers.sizes import installed_size
from benchmarks.peers.workshop import Workshop


def settings(precision: Precision) -> dict[str, Any]:
    """What a precision is called in the model's configuration."""
    if precision is Precision.BF16:
        return {"dtype": "bfloat16"}
    return {"quantization": str(precision)}


@dataclass(frozen=True)
class Kvarn:
    """The engine that is compared with the others. It quantises the plain checkpoint itself when it loads it."""

    name: str = "kvarn"
    title: str = "Kvarn"

    def precision_note(self, precision: Precision) -> str | None:
        return ", ".join(f"`{key}: {value}`" for key, value in settings(precision).items())

    def install(self, shop: Workshop) -> None:
        """Nothing: it is this environment's."""

    def convert(self, shop: Workshop, case: Case) -> None:
        """Nothing of its own: it reads the plain checkpoint."""
        shop.make_checkpoint(case.shape)

    def obstacle(self, shop: Workshop, case: Case) -> str | None:
        if not shop.has_checkpoint(case.shape):
            return f"{case.shape.name} is not made yet: {PREPARE}"
        return None if _command().exists() else f"{_command()} is not there: install Kvarn into this environment"

    def launch(self, shop: Workshop, case: Case, port: int) -> Launch:
        model = {
            "name": MODEL,
            "path": str(shop.checkpoint_folder(case.shape)),
            "kv_cache_gib": KV_GIB,
            **settings(case.precision),
        }
        config = shop.folder(self.name) / f"{case.label}.yaml"
        config.write_text(json.dumps({"models": [model], "gateway": {"port": port}}), encoding="utf-8")  # JSON is YAML
        return Launch([str(_command()), "serve", "--config", str(config)])

    def installed(self, shop: Workshop) -> Installed:
        return installed_size(Path(sys.executable), ["kvarn"])


def _command() -> Path:
    return Path(sys.executable).with_name("kvarn")
