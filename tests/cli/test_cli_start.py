"""A server that cannot be started safely says so in one line; one that can says who may use it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import httpx
import pytest

import kvarn as package
from deployed_server import wait_for
from profiles import thorough

DEMO = Path(package.__file__).parent / "assets" / "kvarn-demo"


def change(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("damage", "options", "reason"),
    [
        thorough(lambda at: change(at / "config.json", num_hidden_layers=10**9), (), "num_hidden_layers is 1000000000"),
        thorough(
            lambda at: (at / "generation_config.json").write_text('{"temperature": "hot"}'),
            (),
            "generation_config.json: temperature is 'hot'",
        ),
        thorough(lambda at: (at / "tokenizer.json").unlink(), (), "has no tokenizer.json"),
        thorough(lambda at: (at / "model.safetensors").write_bytes(b"nonsense"), (), "not a readable safetensors file"),
        thorough(lambda at: change(at / "config.json", architectures=["NoSuch"]), (), "NoSuch"),
        (lambda at: None, ("--kv-cache-gib", "500000"), "does not fit into this machine's memory: it has"),
    ],
)
def test_a_model_that_cannot_be_served_ends_the_command_with_its_reason_said_once(
    kvarn, tmp_path, damage, options, reason
):
    broken = shutil.copytree(DEMO, tmp_path / "broken")
    damage(broken)
    done = kvarn("serve", str(broken), "--port", "0", *options)
    lines = done.stderr.splitlines()
    assert done.returncode != 0 and "Traceback" not in done.stderr
    told = [line for line in lines if reason in line]  # behind it the gateway may still say what it had begun
    assert len(told) == 1 and told[0].startswith("error: "), done.stderr


def test_a_json_log_carries_the_reason_as_its_message(kvarn, tmp_path):
    broken = shutil.copytree(DEMO, tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"nonsense")
    done = kvarn("serve", str(broken), "--port", "0", "--log-format", "json")
    assert done.returncode == 1
    assert json.loads(done.stderr.splitlines()[-1])["message"].startswith("broken cannot be served:")


@pytest.mark.thorough
def test_a_model_that_cannot_start_does_not_fill_the_log_while_another_is_served(serve, tmp_path):
    broken = shutil.copytree(DEMO, tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"nonsense")
    served = serve(
        "--model",
        f"broken={broken}",
        "--model",
        "good=kvarn-demo",
        "--kv-cache-gib",
        "0.05",
        KVARN_REPLICA__RESTART_BACKOFF_S="0.01",
    )
    engines = set(served.engines())
    wait_for(lambda: engines.update(served.engines()) or len(engines) >= 4)  # it is started again and again
    assert served.stop() == 0
    assert len([line for line in served.log if "not a readable safetensors file" in line]) == 1


@pytest.mark.parametrize("content", [thorough(None), b"nonsense"])
def test_a_certificate_that_cannot_be_used_is_named(kvarn, tmp_path, content):
    file = tmp_path / "cert.pem"
    if content is not None:
        file.write_bytes(content)
    done = kvarn("serve", "--port", "0", "--ssl-certfile", str(file))
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"error: the certificate cannot be used ({file})")


def test_a_server_open_to_other_machines_does_not_start(kvarn):
    done = kvarn("serve", "--host", "0.0.0.0", KVARN_AUTH__MODE="open")
    assert done.returncode == 2
    assert "anybody could administer" in done.stderr and len(done.stderr.strip().splitlines()) == 1


@pytest.mark.thorough
def test_a_server_that_could_have_no_key_says_so_in_its_last_line(kvarn, tmp_path):
    (tmp_path / "bootstrap-admin-key" / "in-the-way").mkdir(parents=True)
    done = kvarn("serve", "--port", "0", KVARN_AUTH__MODE="keys", KVARN_DATA_DIR=str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith("error: cannot write the administrator's key")
    assert "startup failed" not in done.stderr, "said once"
    assert "Traceback" not in done.stderr


@pytest.mark.thorough
def test_a_file_that_is_no_database_is_named_in_the_last_line(kvarn, tmp_path):
    (tmp_path / "notes.txt").write_text("no database at all, but a text of some length" * 50)
    done = kvarn("serve", "--port", "0", KVARN_STORE__URL=f"sqlite:///{tmp_path}/notes.txt")
    assert done.returncode == 2
    assert "notes.txt cannot be used" in done.stderr.strip().splitlines()[-1]
    assert "never retrieved" not in done.stderr and "Traceback" not in done.stderr


@pytest.mark.thorough
def test_a_server_for_other_machines_asks_for_the_key_it_made(serve, tmp_path, monkeypatch):
    monkeypatch.setenv("KVARN_DATA_DIR", str(tmp_path))
    served = serve("--host", "0.0.0.0", "--max-context-length", "512", "--kv-cache-gib", "0.05")
    key = (tmp_path / "bootstrap-admin-key").read_text().strip()
    url = served.url.replace("0.0.0.0", "127.0.0.1")
    assert httpx.get(f"{url}/v1/models").status_code == 401
    assert httpx.get(f"{url}/v1/models", headers={"authorization": f"Bearer {key}"}).status_code == 200
    served.stop()
    log = "".join(served.log)
    assert "every request needs an API key" in log
    assert "bootstrap-admin-key" in log and key not in log


@pytest.mark.thorough
def test_a_server_on_loopback_says_that_it_is_open(serve):
    served = serve("--max-context-length", "512", "--kv-cache-gib", "0.05")
    assert httpx.get(f"{served.url}/v1/models").status_code == 200
    served.stop()
    assert "without a key" in "".join(served.log)
