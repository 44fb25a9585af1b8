"""The client of an engine process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable

import msgspec

from kvarn.replica.client.block_events import BlockEventReader, BlockWatcher
from kvarn.replica.client.connection import EngineConnection
from kvarn.replica.client.protocol import (
    AdapterChangeError,
    ReplicaLostError,
    ReplicaState,
    ReplicaStatus,
    ReportPending,
    RequestRefusedError,
)
from kvarn.replica.client.questions import EngineQuestions
from kvarn.replica.client.request_stream import RequestStream
from kvarn.wire.block_events import BlockEvents, WatchBlocks
from kvarn.wire.messages import (
    Abort,
    AdapterChanged,
    AdapterInfo,
    Adapters,
    Embed,
    Embedded,
    EngineStats,
    ForgetTenant,
    FromEngine,
    Join,
    LoadAdapter,
    ModelCard,
    RefusalReason,
    Refused,
    StepOutput,
    Submit,
    ToEngine,
    TokenDelta,
    UnloadAdapter,
)
from kvarn.wire.questions import AnswerT, EngineAnswer, EngineQuestion
from kvarn.wire.sessions import SessionNews

log = logging.getLogger(__name__)


class ZmqReplicaClient:
    """A `ReplicaClient` of the engine that its supervisor reports by `update`. `gateway`: number of this gateway
    process, whom the engine answers."""

    def __init__(self, name: str, gateway: int = 0) -> None:
        self.state = ReplicaState.STARTING
        self.progress = ("start", 0.0)
        self.card: ModelCard | None = None
        self.starts = 0
        self.stats = EngineStats()
        self.on_changed: Callable[[], None] = lambda: None
        self._name = name
        self._gateway = gateway
        self._status = ReplicaStatus(model=name, replica="")
        self._connection: EngineConnection | None = None
        self._streams: dict[str, RequestStream] = {}
        self.adapters: dict[str, AdapterInfo] = {}
        self._revision = 0
        """Revision of the adapters. They are kept when an engine dies: the next is told of them."""
        self._embeddings: dict[str, asyncio.Future[list[bytes]]] = {}
        self._changes: dict[str, asyncio.Future[None]] = {}
        """Adapters that are being loaded or unloaded for this process."""
        self._questions = EngineQuestions(self._send, gateway)
        self._watcher: BlockWatcher | None = None
        self._block_reader: BlockEventReader | None = None

    def update(self, status: ReplicaStatus) -> None:
        runs = status.state in (ReplicaState.READY, ReplicaState.DRAINING)
        self._status = status
        if self._connection is not None and (not runs or status.endpoint != self._connection.endpoint):
            self._leave("the engine is down" if runs else status.stage)
        if runs and self._connection is None:
            assert status.endpoint is not None, "an engine that runs is somewhere"
            self.starts += 1
            own = status.endpoint.client(self._gateway)
            self._connection = EngineConnection(
                status.endpoint, own, self._join, self._handle, self._connection_changed
            )
            self._connection.open()
        self._show()

    def _show(self) -> None:
        status, before = self._status, self.state
        self.state, self.progress, self.card = status.state, (status.stage, status.fraction), status.card
        if self._connection is not None and self._connection.is_lost:
            self.state, self.progress = ReplicaState.DOWN, ("connect to the engine again", 0.0)
        if self.state is not before:
            self.on_changed()

    @property
    def adapters_revision(self) -> int:
        return self._revision

    def know_adapters_of(self, other: ZmqReplicaClient) -> None:
        """Tell the engine, once it is ready, of the adapters that another replica of the model has."""
        self.adapters, self._revision = dict(other.adapters), other.adapters_revision

    def close(self) -> None:
        self._leave("the gateway process was stopped")

    async def generate(
        self, request: Submit, report_pending: ReportPending | None = None
    ) -> AsyncGenerator[TokenDelta, None]:
        connection = self._connected(request.request_id)
        stream = self._streams[request.request_id] = RequestStream(request.choices, report_pending)
        try:
            connection.send(msgspec.structs.replace(request, gateway=self._gateway))
            while deltas := await stream.take():
                for delta in deltas:
                    yield delta
        finally:
            del self._streams[request.request_id]
            stream.close()
            if not stream.finished:
                self._abort(request.request_id)

    async def embed(self, request_id: str, inputs: list[list[int]]) -> list[bytes]:
        connection = self._connected(request_id)
        answer: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        self._embeddings[request_id] = answer
        try:
            connection.send(Embed(request_id=request_id, inputs=inputs, gateway=self._gateway))
            return await answer
        finally:
            del self._embeddings[request_id]
            if answer.cancelled() or not answer.done():
                self._abort(request_id)

    async def load_adapter(self, request_id: str, adapter: AdapterInfo, *, in_place: bool = False) -> None:
        message = LoadAdapter(request_id=request_id, adapter=adapter, in_place=in_place, gateway=self._gateway)
        await self._change(request_id, message)

    async def unload_adapter(self, request_id: str, name: str) -> None:
        await self._change(request_id, UnloadAdapter(request_id=request_id, name=name, gateway=self._gateway))

    async def _change(self, request_id: str, message: LoadAdapter | UnloadAdapter) -> None:
        connection = self._connected(request_id)
        answer = self._changes[request_id] = asyncio.get_running_loop().create_future()
        try:
            connection.send(message)
            await answer
        finally:
            del self._changes[request_id]

    def tell_session(self, news: SessionNews) -> bool:
        return self._send(news)

    def forget_tenant(self, tenant: str) -> bool:
        return self._send(ForgetTenant(tenant=tenant))

    async def ask(self, question: EngineQuestion[AnswerT]) -> AnswerT | None:
        return await self._questions.ask(question)

    def watch_blocks(self, watcher: BlockWatcher | None) -> None:
        if self._watcher is not None:
            self._send(WatchBlocks(gateway=self._gateway, wanted=False))
        self._watcher = watcher
        self._read_blocks()

    def _read_blocks(self) -> None:
        self._block_reader = None if self._watcher is None else BlockEventReader(self._watcher, self._ask_for_blocks)
        if self._block_reader is not None:
            self._ask_for_blocks()

    def _ask_for_blocks(self) -> None:
        self._send(WatchBlocks(gateway=self._gateway))

    def _connected(self, request_id: str) -> EngineConnection:
        if self._connection is None or not self._connection.takes_requests:
            stage, fraction = self.progress
            raise ReplicaLostError(f"{self._name} is not ready: {self.state} ({stage}, {fraction:.0%})")
        if request_id in self._streams or request_id in self._embeddings or request_id in self._changes:
            raise RequestRefusedError(RefusalReason.DUPLICATE_ID, f"a request with the id {request_id!r} is running")
        return self._connection

    def _send(self, message: ToEngine) -> bool:
        return self._connection is not None and self._connection.send(message)

    def _abort(self, request_id: str) -> None:
        self._send(Abort(request_id=request_id, gateway=self._gateway))

    def _join(self, address: str) -> None:
        known = list(self.adapters.values())
        self._send(Join(gateway=self._gateway, address=address, adapters=known, revision=self._revision))
        self._read_blocks()

    def _leave(self, reason: str) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self._forget(reason)

    def _forget(self, reason: str) -> None:
        self.stats = EngineStats()
        self._block_reader = None
        self._questions.forget()
        if self._watcher is not None:
            self._watcher.forget()
        for request_id in [*self._streams, *self._embeddings, *self._changes]:
            self._fail(request_id, ReplicaLostError(reason))

    def _connection_changed(self, error: Exception | None) -> None:
        if error is not None:
            why = "messages of an engine are lost, and it is joined again: %s"
            is_known = isinstance(error, ConnectionError)
            log.warning(why, error, extra={"model": self._name}, exc_info=None if is_known else error)
            self._forget(f"messages of the engine are lost: {error}")
        self._show()

    def _handle(self, message: FromEngine) -> None:
        """Hand over what the engine sent. Answers to unknown ids belong to aborted requests and are ignored."""
        match message:
            case StepOutput():
                self.stats = message.stats or self.stats
                for delta in message.deltas:
                    stream = self._streams.get(delta.request_id)
                    if stream is not None and not stream.put(delta):
                        self._abort(delta.request_id)
            case Embedded():
                answer = self._embeddings.get(message.request_id)
                if answer is not None and not answer.done():
                    answer.set_result(message.vectors)
            case BlockEvents():
                if self._block_reader is not None:
                    self._block_reader.take(message)
            case EngineAnswer():
                self._questions.take(message)
            case Adapters():
                self.adapters = {adapter.name: adapter for adapter in message.adapters}
                self._revision = message.revision
                self.on_changed()
            case AdapterChanged():
                change = self._changes.get(message.request_id)
                if change is not None and not change.done():
                    if message.problem:
                        change.set_exception(AdapterChangeError(message.code, message.problem))
                    else:
                        change.set_result(None)
            case Refused():
                error = RequestRefusedError(message.reason, message.message, message.retry_after_s)
                self._fail(message.request_id, error)

    def _fail(self, request_id: str, error: Exception) -> None:
        stream, answer = (
            self._streams.get(request_id),
            self._embeddings.get(request_id) or self._changes.get(request_id),
        )
        if stream is not None:
            stream.fail(error)
        if answer is not None and not answer.done():
            answer.set_exception(error)
