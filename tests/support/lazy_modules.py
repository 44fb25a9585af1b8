"""Modules that are imported at their first use: every process of the tests collects all files, and few run these."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class LazyModule:
    """Stands for a module until an attribute of it is asked for by its name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # pytest looks at all that a file holds
            raise AttributeError(attribute)
        return getattr(import_module(self._name), attribute)
