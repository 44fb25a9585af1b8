"""A server with OpenAI's API as a replica: requests go to it as they are, and its answers come back in parts."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec

from kvarn.config.model import ModelConfig
from kvarn.external.answer import (
    MAX_EVENT_BYTES,
    AnswerPart,
    EmbeddingAnswer,
    read_embeddings,
    read_events,
    read_part,
)
from kvarn.external.errors import ExternalFailedError, error_of_answer
from kvarn.external.probe import probe_server
from kvarn.replica.client.block_events import BlockWatcher
from kvarn.replica.client.protocol import (
    AdapterChangeError,
    ReplicaState,
    ReportPending,
    RequestRefusedError,
)
from kvarn.wire.messages import AdapterInfo, EngineStats, ModelCard, RefusalReason, Submit, TokenDelta
from kvarn.wire.questions import AnswerT, EngineQuestion
from kvarn.wire.sessions import SessionNews

Trace = Mapping[str, str]
"""Headers of a trace."""
NO_TRACE: Trace = {}

_CONNECT_S = 5.0
_MAX_ERROR_BYTES = 64 * 1024
_DOWN_AFTER = 2
"""Failed probes in a row after which a replica that was ready is down."""

log = logging.getLogger(__name__)


class ExternalReplica:
    """A `ReplicaClient` of an external server, which takes texts and no token ids: `answer` and `embed_texts` stand
    for `generate` and `embed`. `probe` must be called now and then."""

    def __init__(self, config: ModelConfig, base_url: str) -> None:
        assert config.external is not None
        self.state = ReplicaState.STARTING
        self.progress = ("connect", 0.0)
        self.card: ModelCard | None = None
        self.starts = 0
        self.stats = EngineStats()
        self.adapters: dict[str, AdapterInfo] = {}
        self.on_changed: Callable[[], None] = lambda: None
        self.base_url = base_url
        self.name = f"{urlsplit(base_url).netloc}/{config.name}"
        self.in_flight = 0
        self._config = config
        self._external = config.external
        self._key = ""
        self._failed_probes = 0
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(None, connect=config.timeouts.connect_s or _CONNECT_S),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=256),
        )

    @property
    def model(self) -> str:
        return self._external.model or self._config.name

    async def answer(
        self, path: str, body: dict[str, Any], trace: Trace = NO_TRACE
    ) -> AsyncGenerator[AnswerPart, None]:
        """Send a request; yields the parts of the answer as they come, one where the server does not stream. Closing
        the generator closes the connection, which aborts the request there. `trace`: headers by which the server goes
        on with the request's trace. Raises `ExternalRefusedError`, `ExternalFailedError`."""
        async with aclosing(self._send(path, body, trace)) as chunks:
            is_stream = await anext(chunks) == b"stream"
            if is_stream:
                async with aclosing(read_events(chunks)) as events:
                    async for data in events:
                        yield read_part(data)
            else:
                yield read_part(await _joined(chunks))

    async def embed_texts(self, body: dict[str, Any], trace: Trace = NO_TRACE) -> EmbeddingAnswer:
        async with aclosing(self._send("embeddings", body, trace)) as chunks:
            await anext(chunks)
            return read_embeddings(await _joined(chunks))

    async def probe(self) -> None:
        try:
            self._key = _read_key(self._external.api_key_env, self._external.api_key_file)
            async with asyncio.timeout(self._external.probe_timeout_s):
                found = await probe_server(self._http, self.base_url, self._headers(), self.model, self._external)
        except (ExternalFailedError, httpx.HTTPError, TimeoutError, OSError) as error:
            self._not_ready(str(error) or type(error).__name__)
            return
        self._failed_probes = 0
        if not found.ready:
            self._set_state(ReplicaState.STARTING, "the server loads the model", 0.5)
            return
        if self.state is not ReplicaState.READY:
            self.starts += 1
            log.info("external replica is ready", extra={"model": self._config.name, "replica": self.name})
        context = self._config.max_context_length or found.max_context_length or 0
        self.card = ModelCard(
            kind="generate" if self._config.kind == "auto" else self._config.kind,
            architecture="external",
            dtype="",
            vocab_size=0,
            max_context_length=context,
            num_parameters=0,
            kernels=" ".join(filter(None, (self._external.api, found.version))),
            embedding_size=self._external.embedding_size or 0,
        )
        self._set_state(ReplicaState.READY, "ready", 1.0)

    async def aclose(self) -> None:
        await self._http.aclose()

    # Operations that a server of texts lacks ------------------------------------------------------------------------

    async def generate(
        self, request: Submit, report_pending: ReportPending | None = None
    ) -> AsyncGenerator[TokenDelta, None]:
        raise self._no_token_ids()
        yield  # an asynchronous generator

    async def embed(self, request_id: str, inputs: list[list[int]]) -> list[bytes]:
        raise self._no_token_ids()

    async def load_adapter(self, request_id: str, adapter: AdapterInfo, *, in_place: bool = False) -> None:
        raise AdapterChangeError("invalid", f"{self._config.name!r} is served by another server: load it there.")

    async def unload_adapter(self, request_id: str, name: str) -> None:
        raise AdapterChangeError("missing", f"{self._config.name!r} is served by another server: unload it there.")

    def watch_blocks(self, watcher: BlockWatcher | None) -> None:
        """No effect: the server does not report its cached blocks."""

    def tell_session(self, news: SessionNews) -> bool:
        return False

    def forget_tenant(self, tenant: str) -> bool:
        """No effect: nothing of a tenant is kept here."""
        return True

    async def ask(self, question: EngineQuestion[AnswerT]) -> AnswerT | None:
        """Nothing: the server tells nothing of its steps."""
        return None

    # ---------------------------------------------------------------------------------------------------------------

    def _no_token_ids(self) -> RequestRefusedError:
        message = f"{self._config.name!r} is served by another server, which takes text and no token ids."
        return RequestRefusedError(RefusalReason.INVALID, message)

    async def _send(self, path: str, body: dict[str, Any], trace: Trace) -> AsyncGenerator[bytes, None]:
        """Send a request; yields `stream` or `whole`, then the answer's bytes as they come."""
        with self._counted():
            try:
                request = self._http.build_request(
                    "POST",
                    f"{self.base_url}/{path}",
                    content=msgspec.json.encode(body),
                    headers={"content-type": "application/json", **self._headers(), **trace},
                )
                response = await self._http.send(request, stream=True)
                async with aclosing(response):
                    if response.status_code != 200:
                        raise error_of_answer(response.status_code, await _beginning(response), response.headers)
                    kind = response.headers.get("content-type", "")
                    yield b"stream" if kind.startswith("text/event-stream") else b"whole"
                    async for chunk in response.aiter_bytes():
                        yield chunk
            except httpx.ConnectTimeout:
                raise
            except httpx.HTTPError as error:
                raise ExternalFailedError(f"the connection failed: {error or type(error).__name__}") from error

    @contextmanager
    def _counted(self) -> Generator[None, None, None]:
        self._change_in_flight(1)
        try:
            yield
        finally:
            self._change_in_flight(-1)

    def _change_in_flight(self, by: int) -> None:
        self.in_flight += by
        self.stats = EngineStats(running=self.in_flight, decode_rows=self.in_flight)

    def _headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._key}"} if self._key else {}

    def _not_ready(self, why: str) -> None:
        self._failed_probes += 1
        if self.state is ReplicaState.READY and self._failed_probes < _DOWN_AFTER:
            return
        if self.state is not ReplicaState.DOWN or self.progress[0] != why:
            log.warning("external replica is down: %s", why, extra={"model": self._config.name, "replica": self.name})
        self._set_state(ReplicaState.DOWN, why, 0.0)

    def _set_state(self, state: ReplicaState, stage: str, fraction: float) -> None:
        self.state, self.progress = state, (stage, fraction)
        self.on_changed()


def make_replicas(config: ModelConfig) -> list[ExternalReplica]:
    assert config.external is not None
    return [ExternalReplica(config, url) for url in config.external.base_urls]


def _read_key(variable: str | None, file: str | None) -> str:
    """The API key; empty where none is configured. Raises `ExternalFailedError` where it is configured and not
    there."""
    if variable is not None:
        key = os.environ.get(variable, "")
        if not key:
            raise ExternalFailedError(f"the environment variable {variable} (api_key_env) is not set")
        return key
    if file is None:
        return ""
    try:
        return Path(file).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ExternalFailedError(f"the API key cannot be read from {file}: {error}") from None


async def _joined(chunks: AsyncGenerator[bytes, None]) -> bytes:
    parts, size = [], 0
    async for chunk in chunks:
        parts.append(chunk)
        size += len(chunk)
        if size > MAX_EVENT_BYTES:
            raise ExternalFailedError(f"its answer is longer than {MAX_EVENT_BYTES} bytes")
    return b"".join(parts)


async def _beginning(response: httpx.Response) -> bytes:
    body = b""
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > _MAX_ERROR_BYTES:
            break
    return body[:_MAX_ERROR_BYTES]
