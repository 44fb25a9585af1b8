"""`kvarn keys`, `kvarn tenants` and `kvarn store`, as a person types them, on both databases."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable

import httpx
import pytest
from cryptography.fernet import Fernet
from sqlalchemy import text
from typer.testing import CliRunner

from deployed_server import wait_for
from kvarn.cli.administration.database import OptionError, seconds_of
from kvarn.cli.main import app
from kvarn.config.schema import KvarnConfig
from kvarn.safety.sealing import KEY_FILE
from kvarn.store.engine import Store
from kvarn.store.ids import DEFAULT_ORGANIZATION, DEFAULT_PROJECT
from kvarn.store.keys import is_key
from kvarn.store.models import AuditEntry
from kvarn.store.owner import Owner, Role
from kvarn.store.repositories.pages import Cursor
from kvarn.store.repositories.prompt_samples import add_samples, new_sample
from kvarn.store.repositories.tenants import users
from kvarn.store.repositories.tenants.audit_log import list_audit_log
from kvarn.store.repositories.tenants.audited_changes import Actor, audited_change
from kvarn.store.repositories.tenants.organizations import ensure_default_organization

Run = Callable[..., tuple[int, str, str]]


def call(*arguments: str) -> tuple[int, str, str]:
    """Run a command in this process: exit status, output, errors."""
    handlers = logging.root.handlers[:]
    done = CliRunner().invoke(app, arguments)
    logging.root.handlers[:] = handlers  # a command that logs does so to a stream that ends with it
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture
def run(database_url, tmp_path, monkeypatch) -> Run:
    """The commands on a database of the test's own, once SQLite, once PostgreSQL."""
    monkeypatch.setenv("KVARN_STORE__URL", database_url)
    monkeypatch.setenv("KVARN_DATA_DIR", str(tmp_path))
    return call


@pytest.fixture
def run_on_empty(run: Run, empty_database_url, monkeypatch) -> Run:
    """The same on a database that was never prepared."""
    monkeypatch.setenv("KVARN_STORE__URL", empty_database_url)
    return run


@pytest.fixture(scope="module")
def prepared_database(tmp_path_factory) -> str:
    """URL of a database that is up to date, for tests that change nothing."""
    url = f"sqlite:///{tmp_path_factory.mktemp('prepared_database')}/kvarn.db"
    done = CliRunner().invoke(app, ["store", "upgrade"], env={"KVARN_STORE__URL": url})
    assert done.exit_code == 0
    return url


def test_the_schema_goes_up_and_down_and_is_checked(run_on_empty: Run) -> None:
    run = run_on_empty
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
        (["keys", "create", "k", "--expires-in", "999999w"], 2, "31536000"),
        (["keys", "create", "n" * 300], 2, "256 characters"),
        (["keys", "create", ""], 2, "name"),
        (["keys", "create", "k", "--endpoint", "v1/chat"], 2, "endpoints:/v1/"),
        (["keys", "create", "k", "--model", ""], 2, "models:NAME"),
        (["keys", "list", "--tenant", "org-none"], 1, "org-none"),
        (["tenants", "create", " "], 2, "printable"),
        (["tenants", "create", "x", "--retention-days", "9999999999"], 2, "36500"),
        (["tenants", "set", "org-default", "--name", ""], 2, "name"),
        (["tenants", "set", "org-default", "--tokens-per-minute", str(10**20)], 2, "max_tokens_per_1_minute"),
        (["usage", "--tenant", "org-none"], 1, "org-none"),
        (["usage", "--since", "999999d"], 2, "2026-11-01"),
        (["usage", "--since", "2026-02-01", "--until", "2026-01-01"], 2, "not before"),
        (["tenants", "show", "org-none"], 1, "org-none"),
        (["tenants", "set", "org-default"], 2, "nothing to set"),
        (["tenants", "delete", "org-default", "--yes"], 1, "cannot be deleted"),
    ],
)
def test_what_cannot_be_done_is_one_clear_line(prepared_database, monkeypatch, arguments, status, says) -> None:
    monkeypatch.setenv("KVARN_STORE__URL", prepared_database)
    found, _, error = call(*arguments)
    assert found == status
    assert says in error and len(error.strip().splitlines()) == 1


@pytest.mark.parametrize("command", [["keys", "list"], ["usage"], ["prompts", "show"], ["meter", "--from-ledger"]])
def test_a_database_that_cannot_be_used_ends_each_command_alike(monkeypatch, command) -> None:
    monkeypatch.setenv("KVARN_STORE__URL", "sqlite:////nowhere/at/all/kvarn.db")
    status, _, error = call(*command)
    assert status == 1
    assert "/nowhere/at/all/kvarn.db cannot be used" in error and len(error.strip().splitlines()) == 1


@pytest.mark.parametrize("command", [["keys", "list"], ["usage"], ["prompts", "show"], ["tenants", "list"]])
def test_a_database_that_is_not_prepared_is_told(run_on_empty: Run, command) -> None:
    status, _, error = run_on_empty(*command)
    assert status == 1
    assert "kvarn store upgrade" in error and len(error.strip().splitlines()) == 1


def test_a_name_that_is_no_text_is_refused_in_one_line(run: Run) -> None:
    run("store", "upgrade")
    status, _, error = run("tenants", "create", "a\udcffb")  # a byte that is no UTF-8, as Python has it
    assert status == 2 and "'name'" in error and len(error.strip().splitlines()) == 1


def test_what_only_the_database_refuses_is_one_line(run: Run, database_url) -> None:
    run("store", "upgrade")
    asyncio.run(_execute(database_url, "DROP TABLE rate_limits"))
    status, _, error = run("tenants", "show", "org-default")
    assert status == 1 and "rate_limits" in error and len(error.strip().splitlines()) == 1


async def _execute(url: str, statement: str) -> None:
    database = Store.open(KvarnConfig.model_validate({"store": {"url": url}}))
    async with database.transaction() as session:
        await session.execute(text(statement))
    await database.close()


def test_a_key_is_of_an_active_tenant_and_an_administrators_key_of_an_administrator(run: Run, database_url) -> None:
    run("store", "upgrade")
    tenant = json.loads(run("tenants", "create", "acme", "--json")[1])
    reader, admin = asyncio.run(_add_users(database_url, tenant["id"], tenant["project"]))
    create = ("keys", "create", "k", "--tenant", tenant["id"], "--role", "admin", "--user")
    status, _, error = run(*create, reader)
    assert status == 1 and "no administrator" in error
    assert run(*create, admin)[0] == 0
    run("tenants", "set", tenant["id"], "--archived")
    status, _, error = run("keys", "create", "k", "--tenant", tenant["id"])
    assert status == 1 and "is archived" in error


async def _add_users(url: str, tenant: str, project: str) -> list[str]:
    database = Store.open(KvarnConfig.model_validate({"store": {"url": url}}))
    ids = []
    async with audited_change(database, Actor("test")) as change:
        for role in (Role.MEMBER, Role.ADMIN):
            user = await users.add_user(change, tenant, f"{role}@example.org", str(role), role)
            await change.session.flush()
            await users.add_member(change, tenant, project, user, "member")
            ids.append(user.id)
    await database.close()
    return ids


def test_reading_kept_prompts_makes_no_key_and_is_told_in_the_audit_log(run: Run, database_url, tmp_path) -> None:
    run("store", "upgrade")
    assert run("prompts", "show") == (0, "", "")
    assert not (tmp_path / KEY_FILE).exists()
    asyncio.run(_keep_prompts(database_url, Fernet.generate_key()))
    status, _, error = run("prompts", "show")
    assert status == 1 and KEY_FILE in error and not (tmp_path / KEY_FILE).exists()
    assert asyncio.run(_read_prompts(database_url)) == []
    (tmp_path / KEY_FILE).write_bytes(Fernet.generate_key())
    assert len(run("prompts", "show")[1].splitlines()) == 2
    (entry,) = asyncio.run(_read_prompts(database_url))
    assert entry.actor.startswith("command line") and entry.detail == {"data": {"prompts": 2}}


async def _keep_prompts(url: str, key: bytes) -> None:
    database = Store.open(KvarnConfig.model_validate({"store": {"url": url}}))
    owner = Owner(DEFAULT_ORGANIZATION, DEFAULT_PROJECT)
    sealed = Fernet(key).encrypt(b"{}")
    await ensure_default_organization(database)
    await add_samples(database, [new_sample(owner, f"r{number}", "tiny", 1, sealed) for number in range(2)])
    await database.close()


async def _read_prompts(url: str) -> list[AuditEntry]:
    database = Store.open(KvarnConfig.model_validate({"store": {"url": url}}))
    async with database.reading() as session:
        found = await list_audit_log(
            session, DEFAULT_ORGANIZATION, Cursor(limit=10), types=["prompts.read"], project_ids=[DEFAULT_PROJECT]
        )
    await database.close()
    return found.items


def test_limits_of_a_model_that_is_not_configured_are_set_with_a_warning(run: Run) -> None:
    run("store", "upgrade")
    limits = ("tenants", "set", "org-default", "--requests-per-minute", "5", "--model")
    assert "no model is configured under the name 'typo'" in run(*limits, "typo")[2]
    assert run(*limits, "kvarn-demo")[2] == run(*limits, "*")[2] == ""


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
    assert (shown["stored_bytes"], shown["max_stored_bytes"]) == (0, 10 * 1024**3)
    assert shown["limits"] == [
        {"model": "tiny", "requests_per_minute": 60, "tokens_per_minute": None, "concurrency": None}
    ]
    assert [project["id"] for project in shown["projects"]] == [made["project"]] and shown["keys"] == 1
    assert tenant in run("tenants", "list")[1]
    for part in ("acme", made["project"], "tiny"):
        assert part in run("tenants", "show", tenant)[1]
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
    wait_for(lambda: httpx.get(f"{served.url}/v1/models", headers=headers).status_code == 401)
    assert served.stop() == 0


@pytest.mark.parametrize(("span", "seconds"), [("90s", 90), ("2m", 120), ("12h", 43_200), ("1d", 86_400)])
def test_spans_of_time(span: str, seconds: int) -> None:
    assert seconds_of(span) == seconds


@pytest.mark.parametrize("span", ["", "0d", "5", "d", "-1d", "1.5h", "9999999d"])
def test_what_is_no_span_of_time(span: str) -> None:
    with pytest.raises(OptionError, match="30d"):
        seconds_of(span)


def test_a_key_for_a_model_that_is_not_configured_is_made_with_a_warning_that_names_the_nearest(run, tmp_path) -> None:
    assert run("store", "upgrade")[0] == 0
    file = tmp_path / "kvarn.yaml"
    file.write_text("models: [{name: kvarn-demo, path: kvarn-demo}, {name: large, path: x, aliases: [gpt-4o]}]\n")
    for name, hint in (("kvarn-dmo", "kvarn-demo"), ("gpt-4o", "large"), ("qwen", "configured: kvarn-demo, large")):
        status, out, errors = run("keys", "create", "app", "--model", name, "--config", str(file))
        assert status == 0 and is_key(out.strip())
        (warning,) = [line for line in errors.splitlines() if line.startswith("warning:")]
        assert repr(name) in warning and hint in warning
    status, _, errors = run("keys", "create", "app", "--model", "large", "--config", str(file))
    assert status == 0 and "warning" not in errors
