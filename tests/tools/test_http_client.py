"""The client for servers that projects name, against real sockets."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator

import httpx
import pytest

from kvarn.config.tools import ToolsConfig
from kvarn.tools.addresses import AddressRefusedError
from kvarn.tools.http_client import SafeHttp, ToolServerError, check_headers, check_url
from scripted_server import Asked, always, answer, scripted_server


class Names:
    """A resolver that answers with the next of a name's answers each time, and the last from then on."""

    def __init__(self, **answers: list[list[str]]) -> None:
        self.answers = answers
        self.asked = 0

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked += 1
        answers = self.answers[host.partition(".")[0]]
        return answers.pop(0) if len(answers) > 1 else answers[0]


async def get(http: SafeHttp, url: str, *, trusted: bool = False, **limits: float) -> httpx.Response:
    check_url(url)
    async with http.client(trusted=trusted, max_bytes=int(limits.get("max_bytes", 10_000))) as client:
        return await client.get(url)


@pytest.mark.attack("request forgery")
async def test_an_allowed_server_is_asked_under_its_own_name() -> None:
    async with scripted_server(always(b"fine")) as server:
        names = Names(tools=[["127.0.0.1"]])
        http = SafeHttp(ToolsConfig(allow_private=[server.place]), names)
        response = await get(http, f"http://tools.example:{server.port}/a?b=c")
    assert response.text == "fine"
    assert server.asked[0].head.startswith("GET /a?b=c HTTP/1.1")
    assert server.asked[0].header("host") == f"tools.example:{server.port}"


@pytest.mark.attack("request forgery")
async def test_a_name_that_leads_elsewhere_later_is_judged_again() -> None:
    async with scripted_server(always(b"fine")) as server:
        names = Names(rebind=[["127.0.0.1"], ["127.0.0.2"]])
        http = SafeHttp(ToolsConfig(allow_private=[server.place]), names)
        async with http.client() as client:
            assert (await client.get(f"http://rebind.example:{server.port}/")).text == "fine"
            with pytest.raises(AddressRefusedError):
                await client.get(f"http://rebind.example:{server.port}/")


async def test_rebinding_between_check_and_connection_gains_nothing() -> None:
    """The name is resolved once: the address that was judged is the one that is asked."""
    async with scripted_server(always(b"fine")) as server:
        names = Names(tools=[["127.0.0.1"], ["10.0.0.1"]])
        http = SafeHttp(ToolsConfig(allow_private=[server.place]), names)
        assert (await get(http, f"http://tools.example:{server.port}/")).text == "fine"
    assert names.asked == 1


@pytest.mark.attack("request forgery")
@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "localhost", "localhost.", "2130706433", "0x7f000001", "0177.0.0.1", "127.1", "0", "[::1]"),
        *("[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "①②⑦.⓪.⓪.①", "127。0。0。1", "0.0.0.0"),
    ],
)
async def test_however_loopback_is_spelt_it_is_not_asked(host: str) -> None:
    """With the machine's own resolver: what it makes of a spelling is what is judged."""
    async with scripted_server(always(b"inside")) as server:
        with pytest.raises((AddressRefusedError, ToolServerError)):
            await get(SafeHttp(ToolsConfig()), f"http://{host}:{server.port}/")
        assert server.asked == []


@pytest.mark.attack("request forgery")
@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize(
    "addresses",
    [["10.0.0.7"], ["169.254.169.254"], ["fd00:ec2::254"], ["fe80::1%eth0"], ["1.1.1.1", "127.0.0.1"], ["::"], []],
    ids=str,
)
async def test_a_name_that_leads_inside(scheme: str, addresses: list[str]) -> None:
    """Whatever the name is, an alias (CNAME) of another one too: its addresses are what is judged."""
    http = SafeHttp(ToolsConfig(), Names(metadata=[addresses]))
    with pytest.raises(AddressRefusedError):
        await get(http, f"{scheme}://metadata.google.internal/")


async def test_a_server_of_the_operators_configuration_may_have_any_address() -> None:
    async with scripted_server(always(b"fine")) as server:
        assert (await get(SafeHttp(ToolsConfig()), server.url, trusted=True)).text == "fine"


@pytest.mark.attack("request forgery")
@pytest.mark.attack("request forgery")
@pytest.mark.parametrize("status", ["301 x", "302 x", "303 x", "307 x", "308 x"])
async def test_redirects_are_refused(status: str) -> None:
    async with scripted_server(always(b"", "location: http://169.254.169.254/", status=status)) as server:
        with pytest.raises(ToolServerError, match="redirects are refused"):
            await get(SafeHttp(ToolsConfig(allow_private=[server.place])), server.url)


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scripted_server(always(b"proxy")) as proxy, scripted_server(always(b"fine")) as server:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("all_proxy", proxy.url)
        http = SafeHttp(ToolsConfig(allow_private=[server.place]))
        assert (await get(http, server.url)).text == "fine"


@pytest.mark.attack("output bomb")
@pytest.mark.attack("output bomb")
@pytest.mark.parametrize("announced", [True, False])
async def test_an_answer_ends_at_its_bound(announced: bool) -> None:
    async def endless(asked: Asked) -> AsyncIterator[bytes]:
        length = "content-length: 1000000000" if announced else "connection: close"
        yield f"HTTP/1.1 200 OK\r\n{length}\r\n\r\n".encode()
        while True:
            yield b"x" * 1000

    async with scripted_server(endless) as server:
        with pytest.raises(ToolServerError, match="more than 10000 bytes"):
            await get(SafeHttp(ToolsConfig(allow_private=[server.place])), server.url)
        await asyncio.wait_for(server.left.wait(), 60)


@pytest.mark.attack("output bomb")
async def test_the_bound_holds_for_all_answers_of_an_exchange_together() -> None:
    async with scripted_server(always(b"x" * 600)) as server:
        http = SafeHttp(ToolsConfig(allow_private=[server.place]))
        async with http.client(max_bytes=1000) as client:
            await client.get(server.url)
            with pytest.raises(ToolServerError, match="more than 1000 bytes"):
                await client.get(server.url)


@pytest.mark.attack("output bomb")
async def test_a_compressed_answer_is_refused_unread() -> None:
    bomb = gzip.compress(b"0" * 10_000_000)
    async with scripted_server(always(bomb, "content-encoding: gzip")) as server:
        with pytest.raises(ToolServerError, match="compressed"):
            await get(SafeHttp(ToolsConfig(allow_private=[server.place])), server.url, max_bytes=100_000)
    assert server.asked[0].header("accept-encoding") == "identity"


@pytest.mark.attack("output bomb")
async def test_endless_headers_end_the_answer() -> None:
    async def endless(asked: Asked) -> AsyncIterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\n"
        while True:
            yield b"x-a: " + b"b" * 1000 + b"\r\n"

    async with scripted_server(endless) as server:
        with pytest.raises(ToolServerError, match="broke off"):
            await get(SafeHttp(ToolsConfig(allow_private=[server.place])), server.url)


async def test_a_slow_answer_ends_with_the_callers_time_and_the_connection_is_closed() -> None:
    begun = asyncio.Event()

    async def drip(asked: Asked) -> AsyncIterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\n\r\n"
        begun.set()
        while True:
            yield b"x"
            await asyncio.sleep(0.001)

    async with scripted_server(drip) as server:
        asking = asyncio.create_task(
            get(SafeHttp(ToolsConfig(allow_private=[server.place])), server.url, max_bytes=1e9)
        )
        await begun.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await asyncio.wait_for(server.left.wait(), 60)


async def test_an_unknown_name_and_a_closed_port_are_told() -> None:
    async def unknown(host: str, port: int) -> list[str]:
        raise OSError("no such name")

    with pytest.raises(ToolServerError, match=r"'nowhere.example' is not known"):
        await get(SafeHttp(ToolsConfig(), unknown), "https://nowhere.example/")
    async with scripted_server(always(b"")) as server:
        pass
    with pytest.raises(ToolServerError, match="cannot be reached"):
        await get(SafeHttp(ToolsConfig(allow_private=["127.0.0.1"])), server.url)


@pytest.mark.attack("request forgery")
@pytest.mark.parametrize(
    "url",
    ["ftp://a/b", "file:///etc/passwd", "https://user:secret@a/", "https://", "//a/b", "https://a:99999999/", "x"],
)
def test_urls_that_nothing_is_sent_to(url: str) -> None:
    with pytest.raises(ToolServerError) as error:
        check_url(url)
    assert "secret" not in str(error.value)


@pytest.mark.attack("response splitting")
@pytest.mark.attack("header injection")
@pytest.mark.parametrize(
    "headers",
    [
        *({"host": "a"}, {"Transfer-Encoding": "x"}, {"Content-Length": "0"}, {"a b": "c"}, {"ä": "b"}, {"": "a"}),
        *({"a": "b\r\nc: d"}, {"a": "b\nc"}, {"a\r\nb": "c"}, {"a": "ü"}, {"a": "x" * 9000}),
    ],
)
def test_headers_that_would_change_the_request_are_refused(headers: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="header"):
        check_headers(headers)


def test_a_split_answer_is_not_taken_for_two() -> None:
    """What follows an answer of a known length is not read as the next answer."""

    async def ask() -> None:
        async def two(asked: Asked) -> AsyncIterator[bytes]:
            yield answer(b"first") + answer(b"second")

        async with scripted_server(two) as server:
            http = SafeHttp(ToolsConfig(allow_private=[server.place]))
            async with http.client() as client:
                assert (await client.get(server.url)).text == "first"
                assert (await client.get(server.url + "/again")).text == "first"
            assert [asked.head.split()[1] for asked in server.asked] == ["/", "/again"]

    asyncio.run(ask())
