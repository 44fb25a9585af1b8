"""A server that is started again has what it computed before; an organisation that is deleted has nothing left."""

from __future__ import annotations

from typing import Any

SYSTEM = " ".join(f"Rule {number}: answer question {number * 37 % 101} politely." for number in range(40))


def ask(server: Any, key: str) -> tuple[str, int]:
    """The answer, and how many tokens of the prompt were cached."""
    body = {
        "model": "kvarn-demo",
        "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "What is a kvarn?"}],
        "max_tokens": 20,
        "seed": 5,
    }
    answer = server.http.post("/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"})
    assert answer.status_code == 200, answer.text
    found = answer.json()
    return found["choices"][0]["message"]["content"], found["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_blocks_outlive_a_restart_and_go_with_their_organisation(tmp_path, serving):
    tiers = {"host_gib": 0.05, "disk_gib": 0.1, "directory": str(tmp_path / "kv")}
    configuration = {
        "models": [
            {"name": "kvarn-demo", "path": "kvarn-demo", "kv_cache_gib": 0.1, "threads": 1, "kv_tiers": tiers},
        ],
        "data_dir": str(tmp_path / "data"),
        "auth": {"mode": "keys", "refresh_s": 0.2},
        "gateway": {"port": 0, "drain_timeout_s": 2},
        "quality": {"enabled": False},  # its golden prompts leave blocks too
    }
    with serving(tmp_path, configuration) as server:
        key = (tmp_path / "data" / "bootstrap-admin-key").read_text().strip()
        admin = {"authorization": f"Bearer {key}"}
        tenant = server.http.post("/v1/organization/tenants", json={"name": "acme"}, headers=admin)
        assert tenant.status_code == 200, tenant.text
        made = tenant.json()
        first, cached = ask(server, made["admin_api_key"]["value"])
        assert cached == 0
        server.wait_until(lambda: bool(list((tmp_path / "kv").rglob("*.segment"))), "blocks on disk")
    with serving(tmp_path, configuration) as server:
        again, cached = ask(server, made["admin_api_key"]["value"])
        assert again == first
        assert cached > 300
        metrics = server.http.get("/metrics", headers=admin)
        assert 'kvarn_kv_offload_loaded_bytes_total{model="kvarn-demo",tier="disk"}' in metrics.text
        assert server.http.delete(f"/v1/organization/tenants/{made['id']}", headers=admin).status_code == 200
        server.wait_until(lambda: not list((tmp_path / "kv").rglob("*.segment")), "the blocks to be deleted")
