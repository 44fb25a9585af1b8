"""What is not installed is named at the start, where the configuration needs it, and missed nowhere else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from profiles import thorough

HIDE = """
import sys
from importlib.abc import MetaPathFinder

HIDDEN = ("asyncpg", "redis", "confluent_kafka", "cryptography", "huggingface_hub", "s3fs")

class Hide(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in HIDDEN else found(name, package)
sys.meta_path.insert(0, Hide())
if sys.argv[1] == "import":
    import kvarn.gateway.app, kvarn.gateway.services, kvarn.api_servers.worker
else:
    from kvarn.cli.main import main
    main()
"""


def kvarn(directory: Path, config: dict[str, object], *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command in a process that has none of the extras."""
    path = directory / "kvarn.yaml"
    path.write_text(json.dumps({"data_dir": str(directory / "data"), **config}))
    command = [sys.executable, "-c", HIDE, *arguments, "--config", str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("config", "setting", "extra"),
    [
        thorough({"store": {"url": "postgresql://kvarn@127.0.0.1/kvarn"}}, "store.url", "postgres"),
        thorough({"limits": {"redis_url": "redis://127.0.0.1"}}, "limits.redis_url", "redis"),
        ({"metering": {"kafka": {"bootstrap_servers": "127.0.0.1:9092"}}}, "metering.kafka", "kafka"),
        thorough({"safety": {"prompt_key_file": "keys"}}, "safety.prompt_key_file", "encryption"),
        thorough({"store": {"blobs": "s3://bucket/kvarn"}}, "store.blobs", "s3"),
        ({"models": [{"name": "m", "path": "owner/name"}]}, "owner/name", "hub"),
    ],
)
def test_a_server_that_needs_an_extra_does_not_start_without_it_and_names_it(
    tmp_path: Path, config: dict[str, object], setting: str, extra: str
) -> None:
    ended = kvarn(tmp_path, config, "serve")
    assert ended.returncode == 2
    (line,) = ended.stderr.strip().splitlines()
    assert setting in line and f"pip install 'kvarn[{extra}]'" in line


def test_the_gateway_is_imported_without_the_extras(tmp_path: Path) -> None:
    imported = kvarn(tmp_path, {}, "import")
    assert imported.returncode == 0, imported.stderr


def test_without_the_extras_the_database_in_a_file_is_served(tmp_path: Path) -> None:
    config: dict[str, object] = {"store": {"url": f"sqlite:///{tmp_path}/kvarn.db"}}
    upgraded = kvarn(tmp_path, config, "store", "upgrade")
    assert upgraded.returncode == 0, upgraded.stderr
    counted = kvarn(tmp_path, config, "meter", "--from-ledger")
    assert counted.returncode == 0 and counted.stdout == "0 usage events counted\n", counted.stderr
