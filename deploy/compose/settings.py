"""Passwords of the services in compose.yaml, made once, and Kvarn's settings with them, written at each start.

Usage: settings.py FOLDER [--all]; --all: Kvarn uses Redis and Kafka too.
"""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

EVERYBODY, OWNER = 0o444, 0o400
"""Services run as users of their own, and all those that see the folder are in compose.yaml."""


def password(folder: Path, name: str) -> str:
    """The password in the file of this name; one is made where there is none."""
    path = folder / name
    if not path.exists():
        write(path, secrets.token_urlsafe(32), EVERYBODY)
    return path.read_text(encoding="utf-8")


def write(path: Path, text: str, mode: int) -> None:
    """Put a file in place as a whole."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    new.touch(mode=0o600)
    new.write_text(text, encoding="utf-8")
    new.chmod(mode)
    new.replace(path)


def main(arguments: Sequence[str]) -> None:
    """Write all files."""
    folder = Path(arguments[0])
    folder.chmod(0o755)
    store = f"postgresql://kvarn:{password(folder, 'postgres_password')}@postgres/kvarn"
    settings: dict[str, object] = {"store": {"url": store}}
    if "--all" in arguments:
        redis = password(folder, "redis_password")
        write(folder / "redis.conf", f"requirepass {redis}\nappendonly yes\ndir /data\n", EVERYBODY)
        password(folder, "grafana_password")
        settings["limits"] = {"redis_url": f"redis://:{redis}@redis:6379/0"}
        settings["metering"] = {"kafka": {"bootstrap_servers": "kafka:9092"}}
    write(folder / "kvarn.yaml", json.dumps(settings, indent=2) + "\n", OWNER)  # JSON is YAML


if __name__ == "__main__":
    main(sys.argv[1:])
