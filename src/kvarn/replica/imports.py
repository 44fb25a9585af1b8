"""Leaves out of the start what serving never uses."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

DEFERRED = frozenset({"torch._meta_registrations"})
"""Shape-only versions of torch's operators, for tracing and compiling. `import torch` executes them without using them,
which is two fifths of its time; whoever does use them gets them at the first touch."""

WAKES_THEM = frozenset({"torch._dynamo", "torch.utils._content_store"})
"""Tracing begins by importing one of these, and they count on the deferred ones having been executed before."""


class _DeferredModule(ModuleType):
    """A module that is executed when an attribute of its own is first asked for.

    Unlike those of `importlib.util.LazyLoader` it stays asleep when only `__file__` and its like are read, as `inspect`
    does of every module that is loaded.
    """

    def __getattr__(self, name: str) -> Any:
        """Execute the module, then look again."""
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        self.wake()
        return getattr(self, name)

    def wake(self) -> None:
        """Execute the module."""
        loader = self.__dict__["__spec__"].loader
        assert isinstance(loader, _DeferringLoader)
        self.__class__ = ModuleType  # type: ignore[assignment]  # awake: what runs below shall find a plain module
        loader.inner.exec_module(self)


class _DeferringLoader(Loader):
    def __init__(self, inner: Loader) -> None:
        self.inner = inner

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """A module that sleeps."""
        return _DeferredModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Not yet."""


class _DeferringFinder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the deferred modules where they are; wake them for those that need them."""
        if fullname in WAKES_THEM:
            for name in DEFERRED:
                module = sys.modules.get(name)
                if isinstance(module, _DeferredModule):
                    module.wake()
        spec = PathFinder.find_spec(fullname, path, target) if fullname in DEFERRED else None
        if spec is not None and spec.loader is not None:
            spec.loader = _DeferringLoader(spec.loader)
        return spec


def defer_unused_modules() -> None:
    """Let this process execute the modules of `DEFERRED` on first use instead of at import. Call before the import."""
    sys.meta_path.insert(0, _DeferringFinder())
