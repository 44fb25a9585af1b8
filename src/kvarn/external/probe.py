"""Finds out of a server with OpenAI's API whether it is ready, what it is, and whether it has a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx

from kvarn.config.external import ExternalConfig
from kvarn.external.errors import ExternalFailedError, error_of_answer

_NAMES_SHOWN = 10


@dataclass(frozen=True, slots=True)
class ServerInfo:
    ready: bool
    version: str = ""
    max_context_length: int | None = None


async def probe_server(
    http: httpx.AsyncClient, base_url: str, headers: dict[str, str], model: str, config: ExternalConfig
) -> ServerInfo:
    """Ask a server: `/health` (not all have it), the list of models, `/version` (few have it)."""
    if config.probe == "none":
        return ServerInfo(ready=True)
    root = base_url.removesuffix("/v1")
    health = await http.get(f"{root}/health", headers=headers)
    if health.status_code == 503:  # llama.cpp and vLLM while they load
        return ServerInfo(ready=False)
    if config.probe == "health":
        _check(health)
        return ServerInfo(ready=True)
    listed = await http.get(f"{base_url}/models", headers=headers)
    if listed.status_code == 503:
        return ServerInfo(ready=False)
    _check(listed)
    version = await http.get(f"{root}/version", headers=headers)
    entry = _find(_json(listed), model, config.api, base_url)
    return ServerInfo(True, _version_of(version), _context_of(entry))


def _check(answer: httpx.Response) -> None:
    if answer.status_code != 200:
        error = error_of_answer(answer.status_code, answer.content, answer.headers)
        raise ExternalFailedError(f"{answer.url}: {error}")


def _find(answer: Any, model: str, api: str, base_url: str) -> dict[str, Any]:
    entries = answer.get("data") if isinstance(answer, dict) else None
    found = [entry for entry in entries or () if isinstance(entry, dict)]
    for entry in found:
        aliases = entry.get("aliases")
        if entry.get("id") in (model, f"{model}:latest") or (isinstance(aliases, list) and model in aliases):
            return entry
    if api == "llama_cpp" and found:  # it serves one model, whatever the request calls it
        return found[0]
    names = ", ".join(repr(entry.get("id")) for entry in found[:_NAMES_SHOWN])
    raise ExternalFailedError(f"{base_url} has no model {model!r}; it has: {names or 'none'} (external.model)")


def _context_of(entry: dict[str, Any]) -> int | None:
    """Tokens of a context: `max_model_len` (vLLM, SGLang, Kvarn), `meta.n_ctx` (llama.cpp)."""
    meta = entry.get("meta")
    candidates = (entry.get("max_model_len"), meta.get("n_ctx") if isinstance(meta, dict) else None)
    return next((each for each in candidates if isinstance(each, int) and each > 0), None)


def _version_of(answer: httpx.Response) -> str:
    version = _json(answer) if answer.status_code == 200 else None
    name = version.get("version") if isinstance(version, dict) else None
    return name[:40] if isinstance(name, str) else ""


def _json(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except (ValueError, RecursionError):
        return None
