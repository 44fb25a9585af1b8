"""HTTP requests to servers that projects name: each connection is checked, and all that comes back is bounded.

    URL -> scheme, no credentials -> resolve -> every address allowed? -> connect to that address -> TLS for the name
        -> no redirect, no compression -> bytes counted as they come

The name is resolved once, here, and the connection goes to the address that was judged: a resolver that answers
something else the second time is not asked a second time. The check stands where a connection is made, so that whatever
the URL says (decimal, octal, other scripts' digits, a CNAME) has become an address by then.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any

import httpcore
import httpx

from kvarn.config.allowed_places import AllowedPlace
from kvarn.config.tools import ToolsConfig
from kvarn.tools.addresses import AddressRefusedError, AddressRules, shown

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Gives the addresses of a host."""

MAX_RESPONSE_BYTES = 4 * 1024 * 1024
_CONNECT_S = 10.0
_RESOLVING_AT_ONCE = 64
"""Many, because a project's names may each take half a minute."""
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_OWN_HEADERS = frozenset(
    {"accept-encoding", "connection", "content-length", "expect", "host", "keep-alive", "proxy-authorization"}
    | {"proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}
)
"""Headers that say how a request is sent: never a project's to set."""


class ToolServerError(Exception):
    """A request to a project's server that failed, with a sentence for the client. `status`: of the server's answer."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class SafeHttp:
    def __init__(self, config: ToolsConfig, resolve: Resolve | None = None) -> None:
        self.allowed = [AllowedPlace.parse(each) for each in config.allow_private]
        self._resolve = resolve or Resolver()

    def transport(self, *, trusted: bool = False, max_bytes: int = MAX_RESPONSE_BYTES) -> SafeTransport:
        """A transport for one exchange. `trusted`: the operator's configuration names the server. `max_bytes`: of all
        its answers together."""
        return SafeTransport(AddressRules(self.allowed, trusted), self._resolve, max_bytes)

    def client(
        self,
        *,
        headers: Mapping[str, str] | None = None,
        trusted: bool = False,
        max_bytes: int = MAX_RESPONSE_BYTES,
    ) -> httpx.AsyncClient:
        """A client for one exchange, whose time the caller bounds (`asyncio.timeout`)."""
        return httpx.AsyncClient(
            transport=self.transport(trusted=trusted, max_bytes=max_bytes),
            headers=headers,
            timeout=httpx.Timeout(None, connect=_CONNECT_S),
            trust_env=False,
            follow_redirects=False,
        )


class SafeTransport(httpx.AsyncBaseTransport):
    """Sends requests as this module says. Raises `AddressRefusedError` and `ToolServerError` besides httpx's errors."""

    def __init__(self, rules: AddressRules, resolve: Resolve, max_bytes: int) -> None:
        self._plain = _pool(_CheckedBackend(rules, resolve, encrypted=False))
        self._encrypted = _pool(_CheckedBackend(rules, resolve, encrypted=True))
        self._left = max_bytes
        self._max_bytes = max_bytes

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        check_url(request.url)
        request.headers["accept-encoding"] = "identity"  # what is not inflated cannot burst
        pool = self._encrypted if request.url.scheme == "https" else self._plain
        assert isinstance(request.stream, httpx.AsyncByteStream)
        asked = httpcore.Request(
            method=request.method,
            url=httpcore.URL(
                scheme=request.url.raw_scheme,
                host=request.url.raw_host,
                port=request.url.port,
                target=request.url.raw_path,
            ),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        try:
            answer = await pool.handle_async_request(asked)
        except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError) as error:
            raise _failed(request.url.host, error) from error
        response = httpx.Response(
            answer.status,
            headers=answer.headers,
            stream=_Counted(answer, self, request.url.host),
            extensions=answer.extensions,
        )
        try:
            self._check(response, request.url.host)
        except ToolServerError:
            await answer.aclose()
            raise
        return response

    def count(self, size: int, host: str) -> None:
        """Count bytes of an answer. Raises `ToolServerError` when there are more than allowed."""
        self._left -= size
        if self._left < 0:
            raise ToolServerError(f"{shown(host)} answered with more than {self._max_bytes} bytes")

    async def aclose(self) -> None:
        await self._plain.aclose()
        await self._encrypted.aclose()

    def _check(self, response: httpx.Response, host: str) -> None:
        if response.status_code in _REDIRECTS:
            raise ToolServerError(f"{shown(host)} sends elsewhere (HTTP {response.status_code}): redirects are refused")
        if response.headers.get("content-encoding", "identity").strip().lower() not in ("identity", ""):
            raise ToolServerError(f"{shown(host)} answered compressed, which was not asked for")
        length = response.headers.get("content-length", "")
        if length.isascii() and length.isdigit() and int(length[:20]) > self._left:
            raise ToolServerError(f"{shown(host)} answered with more than {self._max_bytes} bytes")


def check_url(url: httpx.URL | str) -> None:
    """Raise `ToolServerError` for a URL that nothing may be sent to, whatever its host is."""
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, ValueError):
        raise ToolServerError("this is no URL") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ToolServerError("a URL begins with https:// (or http:// where tools.allow_private allows the server)")
    if parsed.port is not None and not 0 < parsed.port < 65536:
        raise ToolServerError("a port is between 1 and 65535")
    if parsed.userinfo:
        raise ToolServerError("a URL must hold no user name and no password: put credentials into headers")


def check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers that a project may send along. Raises `ValueError` for one that would change how the request is sent, or
    that no request may hold."""
    for name, value in headers.items():
        if name.lower() in _OWN_HEADERS:
            raise ValueError(f"the header {name[:64]!r} cannot be set")
        token = name.replace("-", "").replace("_", "")
        if not token.isascii() or not token.isalnum() or len(name) > 128:
            raise ValueError(f"{name[:64]!r} is no name of a header")
        if not value.isascii() or not value.isprintable() or len(value) > 8192:
            raise ValueError(f"the value of the header {name!r} holds other characters than printable ASCII")
    return dict(headers)


class _Counted(httpx.AsyncByteStream):
    def __init__(self, answer: httpcore.Response, transport: SafeTransport, host: str) -> None:
        self._answer = answer
        self._transport = transport
        self._host = host

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for part in self._answer.aiter_stream():
                self._transport.count(len(part), self._host)
                yield part
        except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError) as error:
            raise _failed(self._host, error) from error

    async def aclose(self) -> None:
        await self._answer.aclose()


class _CheckedBackend(httpcore.AsyncNetworkBackend):
    """Connects to addresses that were judged, of names that are resolved here."""

    def __init__(self, rules: AddressRules, resolve: Resolve, *, encrypted: bool) -> None:
        self._rules = rules
        self._resolve = resolve
        self._encrypted = encrypted
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        try:
            async with asyncio.timeout(timeout):
                addresses = await self._resolve(host, port)
        except TimeoutError:
            raise httpcore.ConnectTimeout(f"the name {shown(host)} was not resolved in time") from None
        except OSError:
            raise httpcore.ConnectError(f"the name {shown(host)} is not known") from None
        self._rules.check(host, port, addresses, encrypted=self._encrypted)
        for last, address in enumerate(addresses, 1):
            try:
                return await self._inner.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                if last == len(addresses):
                    raise
        raise AssertionError

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.AsyncNetworkStream:
        raise AddressRefusedError("Unix sockets are not asked")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Resolver:
    """The machine's own resolver, in threads of its own: names that take long hold up nothing else."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_RESOLVING_AT_ONCE, thread_name_prefix="resolve")

    async def __call__(self, host: str, port: int) -> list[str]:
        ask = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        found = await asyncio.get_running_loop().run_in_executor(self._threads, ask)
        return list(dict.fromkeys(str(address[0]) for *_, address in found))


def _pool(backend: httpcore.AsyncNetworkBackend) -> httpcore.AsyncConnectionPool:
    return httpcore.AsyncConnectionPool(ssl_context=_tls(), network_backend=backend, max_connections=10)


@cache
def _tls() -> ssl.SSLContext:
    """The machine's authorities (`SSL_CERT_FILE` adds others). Made once: reading them takes some 20 ms."""
    return httpx.create_ssl_context(trust_env=True)


def _failed(host: str, error: Exception) -> ToolServerError:
    if isinstance(error, httpcore.TimeoutException):
        return ToolServerError(f"{shown(host)} did not answer in time")
    kind = "cannot be reached" if isinstance(error, httpcore.ConnectError) else "broke off"
    return ToolServerError(f"{shown(host)} {kind}: {str(error)[:200]}")
