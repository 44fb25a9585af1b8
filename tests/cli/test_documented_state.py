"""The commands of the pages of backup, upgrade and files, run as they are printed."""

from __future__ import annotations

import asyncio
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from kvarn.config.schema import KvarnConfig
from kvarn.store import migrate
from kvarn.store.engine import Store

DOCS = Path(__file__).parents[2] / "docs"


def commands(page: str) -> list[list[str]]:
    """The lines of a page's blocks of `sh`, each a command of `kvarn`."""
    blocks = re.findall(r"^```sh\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    found = [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]
    assert found and all(line[0] == "kvarn" for line in found)
    return [line[1:] for line in found]


@pytest.fixture
def configured(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("KVARN_STORE__URL", database_url)
    monkeypatch.setenv("KVARN_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    return monkeypatch


def test_a_backup_is_made_checked_and_restored(configured, empty_database_url, kvarn_inside, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "prompts.key").write_text("a key\n")
    making, checking, restoring = commands("operate/backup.md")
    made = kvarn_inside(*making)
    assert made.returncode == 0, made.stderr
    assert f"schema {migrate.head()}; 0 files' contents" in made.stdout and "keep a copy" in made.stderr
    assert "is whole" in kvarn_inside(*checking).stdout
    refused = kvarn_inside(*restoring)
    assert refused.returncode == 1 and "--force replaces" in refused.stderr
    configured.setenv("KVARN_STORE__URL", empty_database_url)
    configured.setenv("KVARN_DATA_DIR", str(tmp_path / "other"))
    restored = kvarn_inside(*restoring)
    assert restored.returncode == 0, restored.stderr
    assert "kept prompts cannot be opened" in restored.stderr and "other/prompts.key" in restored.stderr
    assert kvarn_inside("store", "check").returncode == 0
    (tmp_path / "kvarn.tar.gz").write_bytes((tmp_path / "kvarn.tar.gz").read_bytes()[:-100])
    broken = kvarn_inside(*checking)
    assert broken.returncode == 1 and len(broken.stderr.strip().splitlines()) == 1


def test_a_database_is_upgraded_and_taken_back(configured, database_url: str, kvarn_inside) -> None:
    status, backup, upgrade, check, downgrade = commands("operate/upgrade.md")
    told = kvarn_inside(*status).stdout
    assert re.search(rf"schema +{migrate.head()}", told) and re.search(r"to do +nothing", told)
    assert kvarn_inside(*backup).returncode == 0
    assert kvarn_inside(*downgrade).returncode == 0
    assert re.search(r"release +0\.1", kvarn_inside(*status).stdout)
    assert re.search(r"to do +kvarn store upgrade", kvarn_inside(*status).stdout)
    assert "kvarn store upgrade" in kvarn_inside(*check).stderr
    assert kvarn_inside(*upgrade).stdout == f"the schema is at {migrate.head()}\n"
    assert kvarn_inside(*check).returncode == 0

    async def mark() -> None:
        store = Store.open(KvarnConfig.model_validate({"store": {"url": database_url}}))
        async with store.migrating() as connection:
            await connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9998'")
        await store.close()

    asyncio.run(mark())
    assert '"to_do":"nothing: this version serves on it"' in kvarn_inside(*status, "--json").stdout
    assert kvarn_inside(*check).stdout == "the schema is at 9998, as it should be\n"


def test_contents_are_moved(configured, kvarn_inside, tmp_path: Path) -> None:
    configured.setenv("KVARN_STORE__BLOBS", "database")
    refused = kvarn_inside("blobs", "move")
    assert refused.returncode == 1 and "set it to a folder or a bucket first" in refused.stderr
    configured.setenv("KVARN_STORE__BLOBS", str(tmp_path / "new"))
    configured.setenv("KVARN_STORE__OLD_BLOBS", f'["{tmp_path}/old"]')
    status, move = commands("guides/files.md")
    places = [line.split()[-2:] for line in kvarn_inside(*status).stdout.splitlines()]
    assert places == [["place", "files"], ["database", "0"], [f"{tmp_path}/old", "0"], [f"{tmp_path}/new", "0"]]
    assert kvarn_inside(*move).stdout == f"0 files moved to {tmp_path}/new\n"


def test_the_command_of_the_timer_makes_a_file_of_the_day(tmp_path: Path) -> None:
    """What systemd runs, with its `%%` and `$$` replaced as systemd does, and a `kvarn` that says what it was asked."""
    unit = (DOCS / "operate/backup.md").read_text()
    (line,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    line = line.replace("%%", "%").replace("$$", "$").replace("/opt/kvarn/bin/kvarn", str(tmp_path / "kvarn"))
    (tmp_path / "kvarn").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "kvarn").chmod(0o755)
    run = subprocess.run(shlex.split(line), capture_output=True, text=True, check=True)
    wanted = r"backup --config /etc/kvarn/kvarn\.yaml /var/backups/kvarn/\d{4}-\d\d-\d\d\.tar\.gz\n"
    assert re.fullmatch(wanted, run.stdout)
