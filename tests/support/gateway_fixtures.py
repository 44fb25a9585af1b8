"""A byte-level tokenizer on disk, a replica whose answers a test chooses, and a listening gateway around them."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import httpx
import msgspec
import openai
import pytest
from fastapi import FastAPI
from starlette.types import Scope

from background_runs import Open
from fake_replica import (
    EMBED_CARD,
    GENERATE_CARD,
    FakeReplica,
    answer_text,
    write_checkpoint,
)
from kvarn.catalog.models import ServedModel
from kvarn.config.platform import BatchesConfig, ResponsesConfig, StoreConfig
from kvarn.config.schema import KvarnConfig
from kvarn.gateway.app import create_app
from kvarn.gateway.server import bind, build_server
from kvarn.gateway.state import Gateway
from kvarn.quality.monitor import OnDrift
from kvarn.store.owner import ANYBODY, Principal
from new_tenants import create_organization
from scripted_answers import script

if TYPE_CHECKING:
    import anthropic

ResultT = TypeVar("ResultT")

DATABASE_TIMEOUT_S = 20.0
"""A query may take so long, where a test does not say otherwise."""


@dataclass
class TokenAuthenticator:
    """Lets in whoever a test made a principal for, by bearer token; everybody else as anybody."""

    principals: dict[str, Principal] = field(default_factory=dict)

    async def principal(self, scope: Scope) -> Principal:
        headers = dict(scope["headers"])
        token = headers.get(b"authorization", b"").decode("latin-1").removeprefix("Bearer ")
        return self.principals.get(token, ANYBODY)


@dataclass
class GatewayServer:
    """A gateway over fake replicas, listening on a free port of its own event loop's thread."""

    config: KvarnConfig
    chat: FakeReplica
    embed: FakeReplica
    served: dict[str, ServedModel]
    port: int = 0
    authenticator: TokenAuthenticator = field(default_factory=TokenAuthenticator)
    take_out: OnDrift | None = None
    """Hears of replicas that answer golden prompts wrongly; None: none are asked."""
    app: FastAPI | None = None
    loop: asyncio.AbstractEventLoop | None = None

    @property
    def url(self) -> str:
        scheme = "http" if self.config.gateway.ssl_certfile is None else "https"
        return f"{scheme}://127.0.0.1:{self.port}"

    def client(self, token: str | None = None) -> httpx.Client:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        return httpx.Client(base_url=self.url, timeout=60, headers=headers)

    def sdk(self, token: str = "none") -> openai.OpenAI:
        """OpenAI's client, which does not try again by itself."""
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=token, max_retries=0, timeout=20)

    def claude(self, token: str = "none") -> anthropic.Anthropic:
        """Anthropic's client, which does not try again by itself."""
        import anthropic  # takes half a second, and few tests need it

        return anthropic.Anthropic(base_url=self.url, auth_token=token, api_key=None, max_retries=0, timeout=20)

    def configure(self, **changes: Any) -> None:
        """Replace sections of the configuration, before the server runs."""
        self.config = self.config.model_copy(update=changes)

    def widen(self, context: int) -> None:
        """Give the chat model a longer context."""
        self.chat.card = msgspec.structs.replace(self.chat.card, max_context_length=context)

    @property
    def gateway(self) -> Gateway:
        assert self.app is not None
        gateway: Gateway = self.app.state.gateway
        return gateway

    def do(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Run something on the gateway's event loop, where its database lives."""
        assert self.loop is not None
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def add_tenant(self, name: str, **changes: Any) -> httpx.Client:
        """A new organisation with one project; its client. `changes` are fields of its principal."""
        principal = replace(self.do(create_organization(self.gateway.store, name)), **changes)
        self.authenticator.principals[name] = principal
        return self.client(name)

    def connect(self, receive_buffer: int | None = None) -> socket.socket:
        raw = socket.socket()
        if receive_buffer is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        raw.settimeout(60)
        raw.connect(("127.0.0.1", self.port))
        return raw


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
    """Poll until a condition holds, more and more seldom; fail with what was waited for."""
    deadline, pause_s = time.monotonic() + seconds, 0.002
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds} s for: {what}")
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, 0.05)


def make_server(directory: Path, **gateway: object) -> GatewayServer:
    config = KvarnConfig.model_validate(
        {
            "gateway": {"port": 0, **gateway},
            "data_dir": str(directory / "data"),
            "models": [{"name": "tiny", "path": "tiny"}, {"name": "vec", "path": "vec"}],
        }
    )
    chat, embed = FakeReplica(GENERATE_CARD), FakeReplica(EMBED_CARD)
    served = {
        model.name: ServedModel(model.name, model, [replica], directory)
        for model, replica in zip(config.models, (chat, embed), strict=True)
    }
    return GatewayServer(config, chat, embed, served)


@contextmanager
def running(server: GatewayServer, *, wait_ready: bool = True) -> Iterator[GatewayServer]:
    """Serve a server in a thread until the block ends. Unless a test chose its own, its limit for the database is one
    that a busy machine does not reach."""
    if "timeout_s" not in server.config.store.model_fields_set:
        server.configure(store=server.config.store.model_copy(update={"timeout_s": DATABASE_TIMEOUT_S}))
    listener = bind(server.config.gateway)
    server.port = listener.getsockname()[1]
    server.app = create_app(server.config, server.served, server.authenticator, take_out=server.take_out)
    uvicorn_server = build_server(server.app, server.config.gateway)

    async def main() -> None:
        server.loop = asyncio.get_running_loop()
        await uvicorn_server.serve(sockets=[listener])

    thread = threading.Thread(target=lambda: asyncio.run(main()), name="gateway")
    thread.start()
    try:
        with server.client() as client:
            wait_for(lambda: uvicorn_server.started, "the gateway to listen")
            models = server.served.values()
            wait_for(
                lambda: all(model.text or model.load_error or model.config.external for model in models),
                "text to be loaded",
            )
            if wait_ready:
                wait_for(lambda: client.get("/ready").status_code == 200, "the gateway to be ready")
        yield server
    finally:
        uvicorn_server.should_exit = True
        thread.join(60)
        assert not thread.is_alive(), "the gateway did not stop"


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def shared_server(checkpoint: Path) -> Iterator[GatewayServer]:
    with running(make_server(checkpoint, drain_timeout_s=1, body_timeout_s=1, max_body_bytes=200_000)) as served:
        yield served


@pytest.fixture
def server(shared_server: GatewayServer) -> GatewayServer:
    """The shared gateway with its replicas as new."""
    for replica in (shared_server.chat, shared_server.embed):
        wait_for(lambda replica=replica: not replica.running, "the requests of the test before to end")
        replica.reset()
    return shared_server


@pytest.fixture
def client(server: GatewayServer) -> Iterator[httpx.Client]:
    with server.client() as made:
        yield made


@pytest.fixture
def sdk(server: GatewayServer) -> Iterator[openai.OpenAI]:
    with server.sdk() as made:
        yield made


@pytest.fixture
def claude(server: GatewayServer) -> Iterator[anthropic.Anthropic]:
    with server.claude() as made:
        yield made


@pytest.fixture
def answering(server: GatewayServer) -> Callable[..., None]:
    """Make the chat model answer these texts, one for each choice."""

    def set_answers(*texts: str, end: bool = True) -> None:
        server.chat.answer = lambda request, index: answer_text(texts[index % len(texts)], end=end)

    return set_answers


@pytest.fixture
def scripted(server: GatewayServer) -> Callable[..., None]:
    """Let each turn of the chat model say the next of some texts."""
    return partial(script, server)


@pytest.fixture(name="wait_for", scope="session")
def wait_for_fixture() -> Callable[..., None]:
    return wait_for


@pytest.fixture(scope="session")
def serve(checkpoint: Path) -> Callable[..., AbstractContextManager[GatewayServer]]:
    """Serve a server of one's own, once it is ready: `with serve(prepare, config={"slo": ...}, max_requests=2)`."""

    @contextmanager
    def make(
        prepare: Callable[[GatewayServer], None] = lambda server: None,
        *,
        config: dict[str, Any] | None = None,
        wait_ready: bool = True,
        **gateway: object,
    ) -> Iterator[GatewayServer]:
        server = make_server(checkpoint, **gateway)
        server.configure(**(config or {}))
        prepare(server)
        with running(server, wait_ready=wait_ready):
            yield server

    return make


@pytest.fixture
def serve_stored(serve: Any, database_url: str) -> Callable[..., AbstractContextManager[GatewayServer]]:
    """Serve gateways on the test's database."""

    def make(prepare: Any = lambda server: None, *, config: dict[str, Any] | None = None, **gateway: object) -> Any:
        return serve(prepare, config={"store": StoreConfig(url=database_url)} | (config or {}), **gateway)

    return make


@pytest.fixture
def kept(serve_stored: Any) -> Iterator[GatewayServer]:
    """A gateway of its own on each database."""
    with serve_stored() as server:
        yield server


@pytest.fixture
def open_gateway(serve_stored: Any) -> Open:
    """Serves a gateway that takes responses over soon; several may be open at once, or one after another."""

    def make(prepare: Callable[[Any], None] = lambda server: None, **responses: Any) -> AbstractContextManager[Any]:
        config = {"responses": ResponsesConfig(**{"lease_s": 3, **responses})}
        made: AbstractContextManager[Any] = serve_stored(prepare, config=config, drain_timeout_s=0.5)
        return made

    return make


@pytest.fixture
def runner(serve_stored: Any) -> Iterator[Any]:
    """A gateway of its own on each database, which looks for batches often."""
    with serve_stored(config={"batches": BatchesConfig(poll_s=0.05, max_in_flight=8)}) as server:
        yield server
