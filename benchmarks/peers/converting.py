"""The environment that makes the peers' copies of the models. No engine runs in it, so no engine's size counts it."""

from __future__ import annotations

from benchmarks.peers.workshop import TORCH, Environment, Workshop

REQUIREMENTS = (TORCH, "optimum-intel[openvino]==2.2.0", "sentencepiece")
LOG = "install-converter"


def converter(shop: Workshop) -> Environment:
    """The environment; made where it is not there. Raises PrepareError."""
    environment = Environment(shop.folder("converter") / "venv")
    if not environment.has(REQUIREMENTS):
        environment.create(shop, LOG)
        environment.pip(shop, LOG, *REQUIREMENTS)
        # Nothing here looks at pictures, and a torchvision that does not fit the torch breaks transformers.
        shop.run([environment.python, "-m", "pip", "uninstall", "--yes", "torchvision"], LOG)
        environment.stamp(REQUIREMENTS)
    return environment
