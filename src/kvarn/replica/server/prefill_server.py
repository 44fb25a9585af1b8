"""The engine that computes prompts for another: it sends each block as soon as it is stored in the memory tier.

A job is an ordinary request without output to its own engine, sent through the engine's inbox as if by a gateway
process. Blocks of a prompt are stored after each chunk, so they are on their way while the next one is computed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import zmq

from kvarn.clock import SYSTEM_CLOCK
from kvarn.engine.plan import BlockTransfer
from kvarn.kvstore import BadBlockError, TieredStore
from kvarn.kvstore.exchange import VERSION, Ask, Block, Cancel, Channel, Done, Forget, Greeting, ToPrefill, Welcome
from kvarn.kvstore.record import BlockId, pack_header, tenant_digest
from kvarn.replica.addresses import client_address, engine_address
from kvarn.replica.transport import CLIENT_LINGER_MS, Context, Outbox
from kvarn.wire.messages import Abort, ForgetTenant, FromEngine, Join, Refused, StepOutput, Submit

GATEWAY = 1_000_000
"""Number under which the engine answers this process's own requests: no gateway process has it."""
_LAST_BLOCKS_S = 0.25
"""The last blocks are stored by a step after the one that ends the request."""
_POLL_MS = 50

log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Job:
    connection: _Connection
    number: int
    ask: Ask
    request_id: str
    unsent: set[int] = field(default_factory=set)


class _Connection:
    """One engine that asks."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.jobs: dict[int, _Job] = {}
        self.outgoing: queue.SimpleQueue[tuple[_Job, int] | Done | None] = queue.SimpleQueue()
        """Blocks of jobs, which are pinned, and ends of jobs; None: the connection is over."""


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
        self._model = model
        self._block_bytes = block_bytes
        self._generation = os.urandom(16)
        self._lock = threading.Lock()
        """Of all below, and of the outbox."""
        self._wanted: dict[bytes, list[tuple[_Job, int]]] = {}
        self._jobs: dict[str, _Job] = {}
        self._connections: set[_Connection] = set()
        self._next_request = 1
        self._closed = threading.Event()
        self._context: Context = zmq.Context()
        self._answers = self._context.socket(zmq.PULL)
        self._answers.set_hwm(0)
        self._answers.bind(client_address(sockets, GATEWAY))
        self._outbox = Outbox(self._context, engine_address(sockets), CLIENT_LINGER_MS)
        self._outbox.send(Join(gateway=GATEWAY, address=client_address(sockets, GATEWAY)))
        with contextlib.suppress(FileNotFoundError):
            Path(path).unlink()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen()
        tiers.on_stored = self._stored
        self._answering = threading.Thread(target=self._answer_on, name="kvarn-prefill-answers", daemon=True)
        self._answering.start()
        threading.Thread(target=self._accept_on, name="kvarn-prefill-accept", daemon=True).start()

    def close(self) -> None:
        """End all connections. Idempotent."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in list(self._connections):
            connection.channel.close()
        self._answering.join()
        self._answers.close(linger=0)
        self._outbox.close(drop=True)
        self._context.term()

    # The engine's thread ----------------------------------------------------------------------------------------------

    def _stored(self, transfers: Sequence[BlockTransfer]) -> None:
        """Blocks are in the memory tier: those that are asked for go to the threads that send."""
        with self._lock:
            for transfer in transfers if self._wanted else ():
                for job, index in self._wanted.pop(transfer.name, ()):
                    self._queue(job, index)

    def _queue(self, job: _Job, index: int) -> None:
        if index in job.unsent and self._tiers.reserve(job.ask.names[index]):
            job.unsent.discard(index)
            job.connection.outgoing.put((job, index))

    # The thread that hears what the engine makes of the requests ------------------------------------------------------

    def _answer_on(self) -> None:
        decoder, ended = msgspec.msgpack.Decoder(FromEngine), list[tuple[float, str]]()
        while not self._closed.is_set():
            if self._answers.poll(_POLL_MS):
                message = decoder.decode(self._answers.recv())
                if isinstance(message, StepOutput):
                    due_s = SYSTEM_CLOCK.now() + _LAST_BLOCKS_S
                    ended += [(due_s, delta.request_id) for delta in message.deltas if delta.finish_reason is not None]
                elif isinstance(message, Refused):
                    self._end(message.request_id, "refused")
            now = SYSTEM_CLOCK.now()
            while ended and ended[0][0] <= now:
                self._end(ended.pop(0)[1], "incomplete")

    def _end(self, request_id: str, problem: str) -> None:
        with self._lock:
            job = self._jobs.pop(request_id, None)
            if job is not None:
                self._forget(job)
                job.connection.outgoing.put(Done(job.number, self._generation, problem if job.unsent else ""))

    def _forget(self, job: _Job) -> None:
        job.connection.jobs.pop(job.number, None)
        for index in job.unsent:
            name = job.ask.names[index]
            left = [entry for entry in self._wanted.get(name, ()) if entry[0] is not job]
            if left:
                self._wanted[name] = left
            else:
                self._wanted.pop(name, None)

    # Connections ------------------------------------------------------------------------------------------------------

    def _accept_on(self) -> None:
        while not self._closed.is_set():
            try:
                connected, _ = self._listener.accept()
            except OSError:
                return
            connection = _Connection(Channel(connected, ToPrefill, 0))
            self._connections.add(connection)
            for loop in (self._receive_on, self._send_on):
                threading.Thread(target=loop, args=(connection,), name="kvarn-prefill", daemon=True).start()

    def _receive_on(self, connection: _Connection) -> None:
        try:
            hello, _ = connection.channel.receive()
            ours = Greeting(VERSION, self._model, self._block_bytes)
            if hello != ours:
                log.error("an engine with other weights, or of another version, asked for prompts; it is refused")
                return
            connection.channel.send(Welcome(self._generation))
            while True:
                message, _ = connection.channel.receive()
                if isinstance(message, Ask):
                    self._take(connection, message)
                elif isinstance(message, Cancel):
                    self._cancel(connection, message.job)
                elif isinstance(message, Forget):
                    with self._lock:
                        self._tell(ForgetTenant(tenant=message.tenant))
        except (OSError, BadBlockError) as error:
            log.info("an engine that asked for prompts is gone", extra={"reason": str(error)})
        finally:
            self._drop(connection)

    def _take(self, connection: _Connection, ask: Ask) -> None:
        with self._lock:
            request_id, self._next_request = f"prefill-{self._next_request}", self._next_request + 1
            job = _Job(connection, ask.job, ask, request_id, set(range(len(ask.names))))
            self._jobs[request_id] = connection.jobs[ask.job] = job
            for index, name in enumerate(ask.names):
                self._queue(job, index)
                if index in job.unsent:
                    self._wanted.setdefault(name, []).append((job, index))
            self._tell(msgspec.structs.replace(ask.request, request_id=request_id, gateway=GATEWAY))

    def _cancel(self, connection: _Connection, number: int) -> None:
        with self._lock:
            job = connection.jobs.get(number)
            if job is not None:
                self._forget(job)
                del self._jobs[job.request_id]
                self._tell(Abort(request_id=job.request_id, gateway=GATEWAY))

    def _tell(self, message: Submit | Abort | ForgetTenant) -> None:
        """Send to this process's engine, under the lock, as long as there is one."""
        if not self._closed.is_set():
            self._outbox.send(message)

    def _drop(self, connection: _Connection) -> None:
        for number in list(connection.jobs):
            self._cancel(connection, number)
        connection.outgoing.put(None)
        connection.channel.close()
        self._connections.discard(connection)

    def _send_on(self, connection: _Connection) -> None:
        works = True
        while (item := connection.outgoing.get()) is not None:
            if isinstance(item, Done):
                works = works and self._try(connection, item, ())
                continue
            job, index = item
            name = job.ask.names[index]
            try:
                if works:
                    contents = self._tiers.contents(name)
                    tenant = tenant_digest(job.ask.request.tenant)
                    header = pack_header(BlockId(name, self._model, tenant, job.ask.scope), contents)
                    works = self._try(connection, Block(job.number, self._generation, index), (header, contents))
            finally:
                self._tiers.unreserve(name)

    def _try(self, connection: _Connection, message: Block | Done, record: Sequence[bytes | memoryview]) -> bool:
        try:
            connection.channel.send(message, record)
        except OSError:
            connection.channel.close()  # the thread that receives notices
            return False
        return True
