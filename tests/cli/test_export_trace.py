"""`kvarn export-trace`, as an operator runs it: what it writes, `kvarn bench --trace` reads."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import make_url

from kvarn.store.engine import Store
from kvarn.store.migrate import upgrade
from kvarn.store.repositories.usage import events as usage_events
from kvarn.traffic.trace import open_trace
from sample_usage import make_event

SINCE = ("--since", "2026-09-21", "--until", "2026-09-22")


@pytest.fixture
def config(tmp_path: Path) -> str:
    """A configuration file whose database has three answered requests of a second, of two tenants."""
    path = tmp_path / "kvarn.yaml"
    path.write_text(yaml.safe_dump({"store": {"url": f"sqlite:///{tmp_path}/kvarn.db"}}))

    async def fill() -> None:
        store = Store(make_url(f"sqlite+aiosqlite:///{tmp_path}/kvarn.db"))
        await upgrade(store)
        events = [make_event(1), make_event(2, organization_id="org-b", model="other"), make_event(3, input_tokens=700)]
        await usage_events.record(store, events)
        await store.close()

    asyncio.run(fill())
    return str(path)


def test_requests_are_exported_by_pseudonyms_and_read_back(config: str, kvarn: Any, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    done = kvarn("export-trace", "-c", config, *SINCE, "--salt", "s", "-o", str(trace))
    assert (done.returncode, done.stdout) == (0, "")
    rows = [json.loads(line) for line in trace.read_text().splitlines()]
    assert [(row["input_length"], row["output_length"], row["model"]) for row in rows] == [
        (10, 5, "tiny"),
        (10, 5, "other"),
        (700, 5, "tiny"),
    ]
    assert rows[0]["tenant"] == rows[2]["tenant"] != rows[1]["tenant"]
    assert "org-a" not in trace.read_text()
    assert [each.turns[0].prompt_tokens for each in open_trace(trace)] == [10, 10, 700]
    again = kvarn("export-trace", "-c", config, *SINCE, "--salt", "s")
    assert again.stdout == trace.read_text()
    assert kvarn("export-trace", "-c", config, *SINCE).stdout != again.stdout  # the salt is random


def test_options_select_and_bound_what_is_exported(config: str, kvarn: Any, tmp_path: Path) -> None:
    of = ("export-trace", "-c", config, *SINCE)
    assert len(kvarn(*of, "--tenant", "org-b").stdout.splitlines()) == 1
    weka = json.loads(kvarn(*of, "--model", "other", "--format", "weka", "--block", "16").stdout)
    assert (weka["block_size"], [each["in"] for each in weka["requests"]]) == (16, [10])
    cut = kvarn(*of, "--max-requests", "2")
    assert len(cut.stdout.splitlines()) == 2
    assert "more than 2 requests" in cut.stderr
    nothing = kvarn(*of, "--tenant", "org-c")
    assert (nothing.returncode, nothing.stderr) == (1, "error: no request was answered in this time\n")
    wrong = kvarn("export-trace", "-c", config, "--since", "1h", "--until", "2h")
    assert wrong.returncode == 2
    assert "is not before" in wrong.stderr
