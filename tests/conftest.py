"""Which tests run and in which order, and what they leave: files, memory, processes.

Temporary files are kept in memory where the machine has room for them: most of the time of a small database is its
disk's.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import shutil
import signal
import sys
import zlib
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

from certificates import write_certificate
from kernel_digest import kernels_differ
from profiles import THOROUGH

pytest_plugins = ["service_fixtures", "gateway_fixtures"]

END_S = 120.0
"""In which the interpreter has to end, once the tests have."""
ON_BOTH_DATABASES = ("store",)
"""Folders whose tests run on each database also in the short profile."""
FIRST = (
    "cli",
    "console",
    "fleet",
    "e2e",
    "replica",
    "quality",
    "answers",
    "catalog",
    "rollouts",
    "external",
    "metering",
    "worker",
)
"""Folders with the files that take longest: a file runs in one process, and one that began last would be waited for."""
MEMORY = Path("/dev/shm")
MIN_MEMORY_BYTES = 4 << 30

if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= MIN_MEMORY_BYTES:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

settings.register_profile("kvarn", deadline=None, print_blob=True)
settings.load_profile("kvarn")


gc.disable()  # until all is collected: passes over what is imported are a fifth of the collection


def pytest_collection_finish() -> None:
    """What was imported stays until the end: later passes leave it out."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """What is left after a file's tests stays, too. Passes over all that a worker has come to hold, 1 to 2 GB, stopped
    gateways for seconds."""
    result = yield
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()
    return result


def pytest_configure() -> None:
    """On SIGTERM the tests end the servers they have started: these would outlive a process that just dies."""
    signal.signal(signal.SIGTERM, lambda number, _frame: pytest.exit("terminated", returncode=128 + number))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files of the folders that start servers come first, so that none of these is left for the end; see `Makefile`.
    In the short profile tests marked `thorough` are left out, so are most of Triton's kernels while these are those
    recorded (`kernel_digest`), and one outside `ON_BOTH_DATABASES` runs on one database: half on each."""
    items.sort(key=lambda item: _folder(item) not in FIRST)
    if THOROUGH:
        return
    _drop(config, items, [item for item in items if item.get_closest_marker("thorough")])
    if not kernels_differ():
        _drop(config, items, [item for item in items if _is_of_triton(item) and not item.get_closest_marker("sample")])
    from service_fixtures import initdb  # a plugin: pytest, which imports it first, rewrites its assertions

    if initdb() is None:
        return
    variants: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        database = getattr(getattr(item, "callspec", None), "params", {}).get("database_url")
        if database is not None and _folder(item) not in ON_BOTH_DATABASES:
            variants[item.nodeid.replace(database, "")].append(item)
    _drop(config, items, [group[zlib.crc32(name.encode()) % 2] for name, group in variants.items() if len(group) == 2])


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(Path(__file__).parent).parts[0]


def _is_of_triton(item: pytest.Item) -> bool:
    return Path(__file__).parent / "kernels" / "triton" in item.path.parents


def _drop(config: pytest.Config, items: list[pytest.Item], dropped: list[pytest.Item]) -> None:
    config.hook.pytest_deselected(items=dropped)
    left_out = set(dropped)
    items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """An interpreter that hangs at its end says where, and ends."""
    sys.stdout.flush()
    faulthandler.dump_traceback_later(END_S, exit=True, file=sys.__stderr__)


@pytest.fixture(scope="session", autouse=True)
def _own_data_directory(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Servers that tests start keep nothing in the user's home."""
    os.environ["KVARN_DATA_DIR"] = str(tmp_path_factory.mktemp("data"))
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session", autouse=True)
def _one_trusted_certificate(tmp_path_factory: pytest.TempPathFactory) -> None:
    """HTTP clients load this instead of all authorities, which takes each of them 20 ms."""
    os.environ["SSL_CERT_FILE"] = str(write_certificate(tmp_path_factory.mktemp("certificate"))[0])
