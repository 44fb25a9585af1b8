"""Kvarn: serve large language models on your own machines."""

from __future__ import annotations

__version__: str


def __getattr__(name: str) -> object:
    """The installed version, read when it is first asked for: `kvarn --help` does without."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version("kvarn")
    except PackageNotFoundError:  # a source tree on the path that was never installed
        found = "0+unknown"
    globals()[name] = found
    return found
