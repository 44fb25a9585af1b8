"""The port, and the server that answers there."""

from __future__ import annotations

from typing import Any

import httpx

import kvarn
from kvarn.config.gateway import GatewayConfig
from kvarn.doctor.finding import Finding, error, good, warning
from kvarn.gateway.server import bind, explain_bind

_TIMEOUT_S = 5.0
_EVERY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def check_server(config: GatewayConfig) -> list[Finding]:
    """Ask the configured address; where nothing answers, whether a server can listen there."""
    if config.port == 0:
        return [good("port", "a free one, chosen at the start")]
    host = _EVERY_ADDRESS.get(config.host, config.host)
    url = f"{'https' if config.ssl_certfile else 'http'}://{f'[{host}]' if ':' in host else host}:{config.port}"
    try:
        # The server's own certificate need not name this address; nothing secret is sent.
        with httpx.Client(base_url=url, timeout=_TIMEOUT_S, verify=False, trust_env=False) as client:
            version, ready = _object(client.get("/version")), _object(client.get("/ready"))
    except (httpx.ConnectError, httpx.ConnectTimeout):
        return [check_port(config)]
    except httpx.HTTPError as failure:
        return [error("port", f"{url} is taken, and answers no HTTP ({failure})", "choose another with gateway.port")]
    return check_answers(url, version, ready, kvarn.__version__)


def check_port(config: GatewayConfig) -> Finding:
    where = f"{config.host}:{config.port}"
    try:
        bind(config).close()
    except OSError as failure:
        return error("port", explain_bind(config, failure))
    return good("port", f"{where} is free: no server runs there")


def check_answers(url: str, version: dict[str, Any], ready: dict[str, Any], installed: str) -> list[Finding]:
    """Findings from the answers of a server at `/version` and `/ready`."""
    if "version" not in version or not isinstance(ready.get("models"), dict):
        return [error("port", f"another program answers at {url}", "stop it, or choose another with gateway.port")]
    found = [good("server", f"Kvarn {version['version']} answers at {url}")]
    if version["version"] != installed:
        found = [
            warning(
                "server", f"Kvarn {version['version']} answers at {url}, and {installed} is installed", "restart it"
            )
        ]
    for name, state in ready["models"].items():
        if state.get("ready"):
            found.append(good("model", f"{name} is ready"))
        else:
            detail = state.get("error") or f"{state.get('stage', '')} {state.get('progress', 0):.0%}".strip()
            found.append(warning("model", f"{name} is {state.get('state')}: {detail}", "see the server's log"))
    if (database := ready.get("database", "up")) != "up":
        found.append(
            warning(
                "database", f"the server finds it {database}", "docs/operate/database.md says what goes on without it"
            )
        )
    return found


def _object(response: httpx.Response) -> dict[str, Any]:
    try:
        answer = response.json()
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}
