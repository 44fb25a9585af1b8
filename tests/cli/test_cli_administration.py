"""`kvarn keys`, `kvarn tenants` and `kvarn store`, as a person types them, on both databases."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx
import pytest
from typer.testing import CliRunner

from kvarn.cli import keys, store, tenants
from kvarn.cli.administration import OptionError, seconds_of
from kvarn.store.keys import is_key

Run = Callable[..., tuple[int, str, str]]


def call(*arguments: str) -> tuple[int, str, str]:
    """Run a command in this process: exit status, output, errors."""
    app = {"keys": keys.app, "store": store.app, "tenants": tenants.app}[arguments[0]]
    done = CliRunner().invoke(app, arguments[1:])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture
def run(database_url, tmp_path, monkeypatch) -> Run:
    """The commands on a database of the test's own, once SQLite, once PostgreSQL."""
    monkeypatch.setenv("KVARN_STORE__URL", database_url)
    monkeypatch.setenv("KVARN_DATA_DIR", str(tmp_path))
    return call


@pytest.fixture(scope="module")
def furnished(tmp_path_factory) -> str:
    """URL of a database that is up to date, for tests that change nothing."""
    url = f"sqlite:///{tmp_path_factory.mktemp('furnished')}/kvarn.db"
    done = CliRunner().invoke(store.app, ["upgrade"], env={"KVARN_STORE__URL": url})
    assert done.exit_code == 0
    return url


def test_the_schema_goes_up_and_down_and_is_checked(run: Run) -> None:
    status, _, error = run("store", "check")
    assert status == 1 and "kvarn store upgrade" in error and len(error.strip().splitlines()) == 1
    assert run("keys", "list")[0] == 1
    assert run("store", "upgrade")[0] == 0
    assert run("store", "check")[0] == 0
    status, _, error = run("store", "upgrade", "no-such")
    assert status == 1 and "no-such" in error
    assert run("store", "downgrade", "base")[0] == 1, "it asks first, and nobody answers"
    assert run("store", "check")[0] == 0
    assert run("store", "downgrade", "base", "--yes")[0] == 0
    assert run("store", "check")[0] == 1


def test_a_key_is_made_listed_and_revoked(run: Run) -> None:
    run("store", "upgrade")
    status, value, told = run("keys", "create", "my [app]", "--model", "tiny", "--expires-in", "30d")
    assert status == 0 and is_key(value.strip()) and "not shown again" in told
    listed = run("keys", "list")[1]
    assert "my [app]" in listed and "models:tiny" in listed and value.strip() not in listed
    (row,) = [json.loads(line) for line in run("keys", "list", "--json")[1].splitlines()]
    assert (row["role"], row["project"], row["scopes"]) == ("service", "proj_default", ["models:tiny"])
    assert row["expires_at"] - row["created_at"] == 30 * 86_400
    assert "value" not in row
    assert run("keys", "revoke", row["id"])[0] == 0
    assert run("keys", "list")[1].startswith("no keys")
    assert "my [app]" in run("keys", "list", "--all")[1]
    status, _, error = run("keys", "revoke", row["id"])
    assert status == 1 and "No such API key" in error


def test_a_leaked_key_is_revoked_by_itself(run: Run) -> None:
    run("store", "upgrade")
    made = json.loads(run("keys", "create", "k", "--role", "member", "--json")[1])
    assert is_key(made["value"])
    assert made["id"] in run("keys", "revoke", made["value"])[1]


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["keys", "create", "k", "--expires-in", "soon"], 2, "30d"),
        (["keys", "create", "k", "--project", "proj_none"], 1, "proj_none"),
        (["keys", "create", "k", "--tenant", "org-none"], 1, "org-none"),
        (["keys", "create", "k", "--user", "user-none"], 1, "user-none"),
        (["keys", "create", "k", "--role", "admin", "--model", "tiny"], 1, "cannot have scopes"),
        (["keys", "list", "--tenant", "org-none"], 1, "org-none"),
        (["tenants", "show", "org-none"], 1, "org-none"),
        (["tenants", "set", "org-default"], 2, "nothing to set"),
        (["tenants", "delete", "org-default", "--yes"], 1, "cannot be deleted"),
    ],
)
def test_what_cannot_be_done_is_one_clear_line(furnished, monkeypatch, arguments, status, says) -> None:
    monkeypatch.setenv("KVARN_STORE__URL", furnished)
    found, _, error = call(*arguments)
    assert found == status
    assert says in error and len(error.strip().splitlines()) == 1


def test_a_tenant_is_made_set_shown_and_deleted(run: Run) -> None:
    run("store", "upgrade")
    made = json.loads(run("tenants", "create", "acme", "--weight", "3", "--json")[1])
    assert is_key(made["value"]) and made["weight"] == 3
    tenant = made["id"]
    changed = run(
        "tenants", "set", tenant, "--priority", "5", "--retention-days", "30", "--requests-per-minute", "60",
        "--tokens-per-minute", "1000", "--model", "tiny",
    )  # fmt: skip
    assert changed[0] == 0
    run("tenants", "set", tenant, "--tokens-per-minute", "0", "--model", "tiny", "--archived")
    shown = json.loads(run("tenants", "show", tenant, "--json")[1])
    assert (shown["priority"], shown["retention_days"], shown["status"]) == (5, 30, "archived")
    assert shown["limits"] == [
        {"model": "tiny", "requests_per_minute": 60, "tokens_per_minute": None, "concurrency": None}
    ]
    assert [project["id"] for project in shown["projects"]] == [made["project"]] and shown["keys"] == 1
    assert tenant in run("tenants", "list")[1]
    for text in ("acme", made["project"], "tiny"):
        assert text in run("tenants", "show", tenant)[1]
    assert run("tenants", "delete", tenant)[0] == 1
    assert run("tenants", "delete", tenant, "--yes")[0] == 0
    assert tenant not in run("tenants", "list")[1]


def test_a_running_server_takes_the_commands_keys_and_notices_when_they_end(serve, kvarn, tmp_path, monkeypatch):
    monkeypatch.setenv("KVARN_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("KVARN_AUTH__MODE", "keys")
    served = serve("--max-context-length", "512", "--kv-cache-gib", "0.05")
    value = kvarn("keys", "create", "app").stdout.strip()
    headers = {"authorization": f"Bearer {value}"}
    assert httpx.get(f"{served.url}/v1/models", headers=headers).status_code == 200
    assert kvarn("keys", "revoke", value).returncode == 0
    assert httpx.get(f"{served.url}/v1/models", headers=headers).status_code == 401
    assert served.stop() == 0


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("2m", 120), ("12h", 43_200), ("1d", 86_400)])
def test_spans_of_time(text: str, seconds: int) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "0d", "5", "d", "-1d", "1.5h", "9999999d"])
def test_what_is_no_span_of_time(text: str) -> None:
    with pytest.raises(OptionError, match="30d"):
        seconds_of(text)
