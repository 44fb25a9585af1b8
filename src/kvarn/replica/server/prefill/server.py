"""The engine that computes prompts for another: it sends each block as soon as it is stored in the memory tier.

A job is an ordinary request without output to its own engine, sent through the engine's inbox as if by a gateway
process. Blocks of a prompt are stored after each chunk, so they are on their way while the next one is computed.

    client ── Ask ──▶ this thread ── Submit ──▶ the engine's thread
           ◀─ Block ─            ◀─ stored ───  (blocks it has put into memory, pinned)
           ◀─ Done ──            ◀─ settled ──  (requests that have ended and whose last blocks are stored)
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import zmq

from kvarn.engine.core import EngineCore
from kvarn.engine.plan import BlockTransfer
from kvarn.kvstore import TieredStore
from kvarn.kvstore.record import BlockId, pack_header, tenant_digest
from kvarn.replica.addresses import client_address, engine_address
from kvarn.replica.server.prefill.messages import (
    VERSION,
    Ask,
    Block,
    Cancel,
    Done,
    Forget,
    Greeting,
    ToPrefill,
    Welcome,
    open_socket,
)
from kvarn.replica.transport import CLIENT_LINGER_MS, Context, Outbox
from kvarn.wire.messages import OWN_PROCESS, Abort, ForgetTenant, FromEngine, Join, Refused, TokenDelta

_EVENTS = "inproc://events"

log = logging.getLogger(__name__)


class _Stored(msgspec.Struct, tag=True):
    """Blocks that are asked for are in memory, each pinned once."""

    names: list[bytes]


class _Settled(msgspec.Struct, tag=True):
    """No more blocks of these requests will be stored."""

    request_ids: list[str]


class _Close(msgspec.Struct, tag=True):
    """The engine ends."""


@dataclass(eq=False)
class _Job:
    peer: bytes
    ask: Ask
    request_id: str
    unsent: set[int] = field(default_factory=set)
    is_submitted: bool = False


class PrefillServer:
    """Listens at a path for engines that ask.

    Args:
        tiers: Those of this process's engine.
        path: Of the Unix socket; its directory belongs to this user alone.
        model: See `BlockId.model`.
        block_bytes: Of a block's contents.
        sockets: Directory of the engine's own sockets.
    """

    def __init__(self, tiers: TieredStore, path: str, model: bytes, block_bytes: int, sockets: str) -> None:
        self._tiers = tiers
        self._greeting = Greeting(VERSION, model, block_bytes)
        self._generation = os.urandom(16)
        self._encoder = msgspec.msgpack.Encoder()
        self._peers: set[bytes] = set()
        """Engines that were greeted."""
        self._jobs: dict[str, _Job] = {}
        self._wanted: dict[bytes, list[tuple[_Job, int]]] = {}
        """Jobs that wait for a block, by its name."""
        self._ended: list[tuple[int, str]] = []
        """Steps of the engine's thread after which requests are settled, and these requests."""
        self._num_requests = 0
        self._context: Context = zmq.Context()
        self._answers = self._context.socket(zmq.PULL)
        self._answers.set_hwm(0)
        self._answers.bind(client_address(sockets, OWN_PROCESS))
        self._engine = Outbox(self._context, engine_address(sockets), CLIENT_LINGER_MS)
        self._engine.send(Join(gateway=OWN_PROCESS, address=client_address(sockets, OWN_PROCESS)))
        self._events = self._context.socket(zmq.PULL)
        self._events.bind(_EVENTS)
        self._tell = self._context.socket(zmq.PUSH)
        self._tell.set_hwm(0)
        self._tell.connect(_EVENTS)
        self._router = open_socket(self._context, zmq.ROUTER)
        self._router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        with contextlib.suppress(FileNotFoundError):
            Path(path).unlink()
        self._router.bind(f"ipc://{path}")
        tiers.on_stored = self._on_stored
        self._thread = threading.Thread(target=self._run, name="kvarn-prefill-server", daemon=True)
        self._thread.start()

    # The engine's thread ----------------------------------------------------------------------------------------------

    def _on_stored(self, transfers: Sequence[BlockTransfer]) -> None:
        wanted = self._wanted
        names = [each.name for each in transfers if each.name in wanted and self._tiers.reserve(each.name)]
        if names:
            self._tell.send(self._encoder.encode(_Stored(names)))

    def after_step(self, core: EngineCore, deltas: Iterable[TokenDelta]) -> None:
        """A step ended. The last blocks of a request are stored by a step after the one that ends it."""
        for delta in deltas:
            if delta.finish_reason is not None:
                self._ended.append((core.stores_settle_after, delta.request_id))
        settled = [request_id for step, request_id in self._ended if step <= core.num_collected]
        if settled:
            self._ended = [entry for entry in self._ended if entry[0] > core.num_collected]
            self._tell.send(self._encoder.encode(_Settled(settled)))

    def close(self) -> None:
        """End all connections. Idempotent."""
        if not self._tell.closed:
            self._tell.send(self._encoder.encode(_Close()))
            self._thread.join()
            self._tell.close(linger=0)
            self._context.term()

    # Its own thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        events: msgspec.msgpack.Decoder[_Stored | _Settled | _Close] = msgspec.msgpack.Decoder(
            _Stored | _Settled | _Close
        )
        answers = msgspec.msgpack.Decoder(FromEngine)
        poller = zmq.Poller()
        for socket in (self._events, self._answers, self._router):
            poller.register(socket, zmq.POLLIN)
        is_open = True
        while is_open:
            ready = dict(poller.poll())
            if self._events in ready:
                is_open = self._handle_event(events.decode(self._events.recv()))
            if self._answers in ready:
                answer = answers.decode(self._answers.recv())
                if isinstance(answer, Refused):
                    self._end(answer.request_id, "refused")
            if self._router in ready:
                peer, *frames = self._router.recv_multipart()
                self._handle(peer, frames)
        self._router.close(linger=0)
        self._answers.close(linger=0)
        self._events.close(linger=0)
        self._engine.close(drop=True)

    def _handle_event(self, event: _Stored | _Settled | _Close) -> bool:
        """Handle what the engine's thread tells; returns whether to go on."""
        match event:
            case _Stored():
                for name in event.names:
                    for job, index in self._wanted.pop(name, ()):
                        self._send_block(job, index)
                    self._tiers.unreserve(name)
            case _Settled():
                for request_id in event.request_ids:
                    self._end(request_id, "incomplete")
            case _Close():
                return False
        return True

    def _handle(self, peer: bytes, frames: list[bytes]) -> None:
        try:
            message = msgspec.msgpack.decode(frames[0] if len(frames) == 1 else b"", type=ToPrefill)
        except msgspec.DecodeError as error:
            log.warning("an engine that asks for prompts sent what cannot be read", extra={"reason": str(error)})
            return
        match message:
            case Greeting() if message != self._greeting:
                log.error("an engine with other weights, or of another version, asked for prompts; it is refused")
            case Greeting():
                self._peers.add(peer)
                self._send(peer, Welcome(self._generation))
            case Ask() if peer in self._peers:
                self._take(peer, message)
            case Cancel():
                self._cancel([job for job in self._jobs.values() if job.peer == peer and job.ask.job == message.job])
            case Forget() if peer in self._peers:
                self._engine.send(ForgetTenant(tenant=message.tenant))

    def _take(self, peer: bytes, ask: Ask) -> None:
        self._num_requests += 1
        job = _Job(peer, ask, f"prefill-{self._num_requests}", set(range(len(ask.names))))
        self._jobs[job.request_id] = job
        for index, name in enumerate(ask.names):
            # Wanted first: what is stored between the two is either told or found.
            self._wanted.setdefault(name, []).append((job, index))
            if self._tiers.reserve(name):
                self._drop_wanted(job, name)
                self._send_block(job, index)
                self._tiers.unreserve(name)
                if job.request_id not in self._jobs:
                    return  # its peer is gone
        submit = msgspec.structs.replace(ask.request, request_id=job.request_id, gateway=OWN_PROCESS)
        job.is_submitted = True
        self._engine.send(submit)

    def _send_block(self, job: _Job, index: int) -> None:
        """Send a pinned block, unless it was sent; what is queued is a copy."""
        if index not in job.unsent or job.request_id not in self._jobs:
            return
        job.unsent.discard(index)
        name = job.ask.names[index]
        contents = self._tiers.contents(name)
        block = BlockId(name, self._greeting.model, tenant_digest(job.ask.request.tenant), job.ask.scope)
        self._send(job.peer, Block(job.ask.job, self._generation, index), pack_header(block, contents), contents)

    def _send(self, peer: bytes, message: Welcome | Block | Done, *record: bytes | memoryview) -> None:
        try:
            self._router.send_multipart([peer, self._encoder.encode(message), *record])
        except zmq.ZMQError as error:
            log.info("an engine that asked for prompts is gone", extra={"reason": str(error)})
            self._peers.discard(peer)
            self._cancel([job for job in self._jobs.values() if job.peer == peer])

    def _end(self, request_id: str, problem: str) -> None:
        job = self._jobs.get(request_id)
        if job is not None:
            self._remove(job)
            self._send(job.peer, Done(job.ask.job, self._generation, problem if job.unsent else ""))

    def _cancel(self, jobs: list[_Job]) -> None:
        for job in jobs:
            self._remove(job)
            if job.is_submitted:
                self._engine.send(Abort(request_id=job.request_id, gateway=OWN_PROCESS))

    def _remove(self, job: _Job) -> None:
        self._jobs.pop(job.request_id, None)
        for index in job.unsent:
            self._drop_wanted(job, job.ask.names[index])

    def _drop_wanted(self, job: _Job, name: bytes) -> None:
        left = [entry for entry in self._wanted.get(name, ()) if entry[0] is not job]
        if left:
            self._wanted[name] = left
        else:
            self._wanted.pop(name, None)
