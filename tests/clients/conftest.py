"""Tests of programs that `make clients` has installed; it names their folder, and nothing here is collected without."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

collect_ignore_glob = [] if "CODING_AGENTS" in os.environ else ["test_*.py"]
START = "Kvarn serves "


@pytest.fixture(scope="session")
def serve_models(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., AbstractContextManager[str]]:
    """Serve checkpoints by name; the server's URL."""

    @contextmanager
    def serve(models: Mapping[str, Path]) -> Iterator[str]:
        named = [word for name, path in models.items() for word in ("--model", f"{name}={path}")]
        command = [Path(sys.executable).with_name("kvarn"), "serve", "--port", "0", "--kv-cache-gib", "0.15", *named]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, "KVARN_DATA_DIR": str(_folder())}
        )
        assert process.stdout is not None
        try:
            ready = next((line for line in process.stdout if line.startswith(START)), None)
            assert ready is not None, f"the server ended with {process.wait()}"
            threading.Thread(target=process.stdout.read, daemon=True).start()
            yield ready.split(" at ")[1].split()[0]
        finally:
            process.terminate()
            process.wait(60)

    def _folder() -> Path:
        return tmp_path_factory.mktemp("server")

    return serve
