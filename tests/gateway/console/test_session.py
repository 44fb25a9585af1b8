"""Who is told to be signed in."""

from __future__ import annotations

from kvarn.config.console import ConsoleConfig


def test_on_an_open_server_nobody_needs_to_sign_in(client) -> None:
    answer = client.get("/console/api/session")
    told = answer.json()
    assert (told["signed_in"], told["open"], told["role"], told["is_platform_admin"]) == (False, True, "admin", True)
    assert told["organization"] == {"id": "org-default", "name": "Default"}
    assert told["projects"] == [told["project"]] == [{"id": "proj_default", "name": "Default project"}]
    assert (told["features"], told["expires"]) == ({"oidc": None}, None)
    assert answer.headers["cache-control"] == "no-store"


def test_the_console_can_be_switched_off(serve) -> None:
    with serve(config={"console": ConsoleConfig(enabled=False)}) as server, server.client() as client:
        assert {client.get(path).status_code for path in ("/console", "/console/", "/console/api/session")} == {404}
        assert "console" not in client.get("/").json()["links"]


def test_views_need_a_key_and_files_do_not(api) -> None:
    with api.client(None) as nobody:
        assert nobody.get("/console/api/anything").status_code == 401
        assert nobody.get("/console").status_code == 307
        told = nobody.get("/console/api/session").json()
    assert (told["signed_in"], told["open"], told["role"]) == (False, False, None)
    told = api.client(api.admin_key).get("/console/api/session").json()
    assert (told["signed_in"], told["role"], told["name"]) == (True, "admin", "Bootstrap admin key")
