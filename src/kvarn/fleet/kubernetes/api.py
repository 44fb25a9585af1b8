"""The verbs of the Kubernetes API that the launcher uses: create, get, list, watch and delete pods of one namespace."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, TypeVar

import httpx
import msgspec

from kvarn.config.kubernetes import KubernetesConfig
from kvarn.config.load import ConfigError
from kvarn.fleet.kubernetes.objects import Pod, PodList, Status, WatchEvent

_TIMEOUT_S = 20.0
_WATCH_S = 120
"""Seconds after which the API server ends a watch; one that is silent for longer is broken."""
GONE = 410
"""Status of a watch from a version that the server does not remember: list again."""


_ObjectT = TypeVar("_ObjectT")


class KubernetesError(Exception):
    """The API server refused a request, or cannot be reached (`status` 0)."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class PodApi:
    """The pods of one namespace. Methods raise `KubernetesError`."""

    def __init__(self, config: KubernetesConfig) -> None:
        """Raises `ConfigError`: this is no pod, and the settings do not say where the API server is."""
        address = config.api_server or _in_cluster_address()
        self._token_file = Path(config.credentials) / "token"
        authority = Path(config.credentials) / "ca.crt"
        self.namespace = config.namespace or _read(Path(config.credentials) / "namespace", "namespace")
        self._client = httpx.AsyncClient(
            base_url=f"{address}/api/v1/namespaces/{self.namespace}",
            verify=_context(authority) if authority.is_file() else True,
            timeout=_TIMEOUT_S,
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def create(self, manifest: dict[str, Any]) -> None:
        await self._ask("POST", "/pods", content=msgspec.json.encode(manifest))

    async def get(self, name: str) -> Pod:
        return _decoded(await self._ask("GET", f"/pods/{name}"), Pod)

    async def list(self, selector: str) -> PodList:
        return _decoded(await self._ask("GET", "/pods", params={"labelSelector": selector}), PodList)

    async def delete(self, name: str, grace_s: int) -> bool:
        """Have a pod end within `grace_s` seconds (at least 1: only its node knows when its process is gone). False:
        there is no such pod."""
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": grace_s}
        try:
            await self._ask("DELETE", f"/pods/{name}", content=msgspec.json.encode(options))
        except KubernetesError as error:
            if error.status != httpx.codes.NOT_FOUND:
                raise
            return False
        return True

    async def watch(self, selector: str, version: str) -> AsyncGenerator[WatchEvent[Pod], None]:
        """Changes of pods after a version of their list. Ends now and then; go on from the version of the last one."""
        params = {
            "labelSelector": selector,
            "resourceVersion": version,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(_WATCH_S),
        }
        timeout = httpx.Timeout(_TIMEOUT_S, read=_WATCH_S + _TIMEOUT_S)
        try:
            async with self._client.stream(
                "GET", "/pods", params=params, headers=self._headers(), timeout=timeout
            ) as answer:
                if answer.is_error:
                    raise _refusal(answer.status_code, await answer.aread())
                async for line in answer.aiter_lines():
                    if not line:
                        continue
                    event = _decoded(line, WatchEvent[msgspec.Raw])
                    if event.type == "ERROR":
                        status = _decoded(event.object, Status)
                        raise KubernetesError(status.message or status.reason, status.code)
                    yield WatchEvent(event.type, _decoded(event.object, Pod))
        except httpx.HTTPError as error:
            raise KubernetesError(_text(error)) from None

    async def _ask(self, method: str, path: str, **request: Any) -> bytes:
        try:
            answer = await self._client.request(method, path, headers=self._headers(), **request)
        except httpx.HTTPError as error:
            raise KubernetesError(_text(error)) from None
        if answer.is_error:
            raise _refusal(answer.status_code, answer.content)
        return answer.content

    def _headers(self) -> dict[str, str]:
        """The token is read each time: Kubernetes replaces it every hour."""
        headers = {"content-type": "application/json", "accept": "application/json"}
        try:
            return {**headers, "authorization": f"Bearer {self._token_file.read_text(encoding='utf-8').strip()}"}
        except OSError as error:
            raise KubernetesError(f"the token of the service account cannot be read: {error}") from None


def _in_cluster_address() -> str:
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        why = "fleet.launcher is `kubernetes`, and this process is no pod of a cluster"
        raise ConfigError(f"{why}: run it in one, or set fleet.kubernetes.api_server")
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def _read(path: Path, setting: str) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}): set fleet.kubernetes.{setting}") from None


def _context(authority: Path) -> Any:
    import ssl

    return ssl.create_default_context(cafile=str(authority))


def _decoded(text: bytes | str | msgspec.Raw, form: type[_ObjectT]) -> _ObjectT:
    try:
        return msgspec.json.decode(text, type=form)
    except msgspec.MsgspecError as error:
        raise KubernetesError(f"the API server sent what cannot be read: {error}") from None


def _refusal(status: int, body: bytes) -> KubernetesError:
    try:
        message = msgspec.json.decode(body, type=Status).message
    except msgspec.MsgspecError:
        message = ""
    return KubernetesError(message or f"the API server answered {status}", status)


def _text(error: Exception) -> str:
    return f"the API server cannot be reached: {str(error) or type(error).__name__}"
