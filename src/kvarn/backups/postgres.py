"""PostgreSQL's own programs, which dump and load a database."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import URL

from kvarn.store.connecting import DRIVERS_OWN, FILE_OPTIONS
from kvarn.store.errors import StoreError

_SERVICE = "kvarn"
_LOCK_TIMEOUT_S = 10
"""Seconds for which a restore waits for those who use the tables."""


def dump(url: URL, snapshot: str, target: Path) -> None:
    """Dump a database as a snapshot that another session exports has it. Raises `StoreError`."""
    options = ["--format=custom", "--no-owner", "--no-privileges", f"--snapshot={snapshot}", f"--file={target}"]
    _run("pg_dump", [*options, f"--dbname=service={_SERVICE}"], url, target.parent)


def load(url: URL, source: Path, tables: Sequence[str]) -> None:
    """Put a dump in the place of these tables, all in one transaction. Raises `StoreError`: the database is as it
    was."""
    script = source.with_suffix(".sql")
    _run("pg_restore", ["--no-owner", "--no-privileges", f"--file={script}", str(source)], url, source.parent)
    names = ", ".join(f'"{table}"' for table in tables)
    wait = f"--command=SET LOCAL lock_timeout = '{_LOCK_TIMEOUT_S}s'"
    drop = [wait, f"--command=DROP TABLE {names} CASCADE"] if tables else []
    options = ["--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--single-transaction", "--output=/dev/null"]
    _run("psql", [*options, *drop, f"--file={script}", f"--dbname=service={_SERVICE}"], url, source.parent)


def _run(program: str, arguments: Sequence[str], url: URL, folder: Path) -> None:
    if shutil.which(program) is None:
        raise StoreError(
            f"{program} is not installed on this machine: install PostgreSQL's programs for clients, of the server's "
            "version (Debian: apt-get install postgresql-client)"
        )
    service = folder / "service.conf"  # the password in a file: arguments and variables can be seen by others
    service.touch(mode=0o600)
    lines = [f"{name}={value}" for name, value in _options(url).items()]
    service.write_text("\n".join([f"[{_SERVICE}]", *lines, ""]))
    environment = {**os.environ, "PGSERVICEFILE": str(service)}
    done = subprocess.run([program, *arguments], env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = "; ".join(done.stderr.strip().splitlines()[:3])
        raise StoreError(f"{program} failed: {said or f'status {done.returncode}'}")


def _options(url: URL) -> dict[str, str]:
    """Options of libpq that lead to the database of a URL."""
    given = url.query.get("host", ())
    hosts = list(given) if isinstance(given, tuple) else [given]
    parts = [each.rpartition(":") if ":" in each else (each, "", "5432") for each in hosts]  # a socket has no port
    options: dict[str, object] = {
        "host": url.host or ",".join(host for host, _, _ in parts),
        "port": url.port or ",".join(port for _, _, port in parts),
        "dbname": url.database,
        "user": url.username,
        "password": url.password,
        "sslmode": url.query.get("ssl"),
    }
    for name, value in url.query.items():
        if name not in DRIVERS_OWN:
            options[name] = Path(str(value)).expanduser() if name in FILE_OPTIONS else value
    return {name: str(value) for name, value in options.items() if value}
