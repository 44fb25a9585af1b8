"""The engine that answers, as it asks another for the blocks of long prompts (`PrefillPeer`).

The engine's thread only queues what is to be sent. One thread sends, receives, verifies, and puts blocks into the
memory tier. Whatever goes wrong ends the job, and the engine computes what has not come. A job is begun under the lock
under which the loss of the connection ends all jobs: none is left waiting.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from dataclasses import dataclass

import msgspec
import zmq

from kvarn.clock import SYSTEM_CLOCK
from kvarn.engine.memory.remote_prefill import PeerLoad
from kvarn.engine.plan import KVFetch
from kvarn.engine.request import Sequence
from kvarn.kvstore import BadBlockError, TieredStore
from kvarn.kvstore.fetch import Fetch
from kvarn.kvstore.record import BlockId, parse_header, tenant_digest
from kvarn.replica.connection_monitor import ConnectionMonitor
from kvarn.replica.server.prefill.jobs import PrefillJob, PrefillJobs, prompt_of
from kvarn.replica.server.prefill.messages import (
    VERSION,
    Ask,
    Block,
    Cancel,
    Done,
    Forget,
    FromPrefill,
    Greeting,
    Received,
    Rejected,
    Welcome,
    open_socket,
)
from kvarn.wire.messages import KVTierStats

_COMMANDS = "inproc://commands"
_CLOSE = b""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Job(PrefillJob):
    fetch: Fetch
    names: list[bytes]


class PrefillClient:
    """Asks the engine that listens at a path, and joins it again when it was started again."""

    def __init__(self, tiers: TieredStore, path: str, model: bytes, block_bytes: int) -> None:
        self._tiers = tiers
        self._path = path
        self._greeting = Greeting(VERSION, model, block_bytes)
        self._lock = threading.Lock()
        """Guards the jobs, the counts and the generation, which the client's own thread alone writes."""
        self._jobs = PrefillJobs[_Job]()
        self._numbers = itertools.count(1)
        self._blocks = 0
        self._dropped: dict[str, int] = {}
        self._generation: bytes | None = None
        """The other process; None while it is not reached."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._commands = self._context.socket(zmq.PULL)
        self._commands.bind(_COMMANDS)
        self._send = self._context.socket(zmq.PUSH)
        self._send.set_hwm(0)
        self._send.connect(_COMMANDS)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(FromPrefill)
        self._thread = threading.Thread(target=self._run, name="kvarn-prefill-client", daemon=True)
        self._thread.start()

    # The engine's thread ----------------------------------------------------------------------------------------------

    def load(self) -> PeerLoad | None:
        with self._lock:
            return None if self._generation is None else self._jobs.load()

    def prefill(self, sequence: Sequence, names: list[bytes], scope: bytes) -> KVFetch | None:
        request = sequence.request
        fetch = self._tiers.expect(sequence.fetch.block_names, request.scope.tenant, scope)
        if fetch is None:
            return None
        number = next(self._numbers)
        job = _Job(sequence.num_prompt, SYSTEM_CLOCK.now(), set(range(len(names))), fetch, names)
        with self._lock:
            is_reached = self._generation is not None
            if is_reached:
                self._jobs.begin(number, job)
        if not is_reached:
            fetch.release()
            return None
        fetch.on_release = lambda: self._cancel(number)
        self._command(Ask(number, prompt_of(sequence, f"prefill-{number}"), names, scope))
        return fetch

    def forget(self, tenant: str) -> None:
        """Let the other engine forget a deleted tenant too."""
        self._command(Forget(tenant))

    def stats(self) -> KVTierStats:
        with self._lock:
            size = self._blocks * self._greeting.block_bytes
            return KVTierStats(stored_bytes_total=size, dropped_total=dict(self._dropped))

    def close(self) -> None:
        if not self._send.closed:
            self._send.send(_CLOSE)
            self._thread.join()
            self._send.close(linger=0)
            self._commands.close(linger=0)
            self._context.term()

    def _cancel(self, number: int) -> None:
        with self._lock:
            job = self._jobs.cancel(number)
        if job is not None:
            self._command(Cancel(number))

    def _command(self, message: Ask | Cancel | Forget) -> None:
        if not self._send.closed:
            self._send.send(self._encoder.encode(message), zmq.NOBLOCK)

    # Its own thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._stay_connected()
        except Exception:
            log.exception("prompts are computed here until this engine is started again: its prefill client failed")

    def _stay_connected(self) -> None:
        """Connect, and again after each loss, until this end closes."""
        reported = False
        while True:
            with (
                open_socket(self._context, zmq.DEALER) as peer,
                contextlib.closing(ConnectionMonitor(peer)) as monitor,
            ):
                peer.connect(f"ipc://{self._path}")
                peer.send(self._encoder.encode(self._greeting))
                try:
                    problem = self._serve(peer, monitor)
                finally:
                    was_reached = self._disconnect()
            if problem is None:
                return
            if was_reached or not reported:
                log.warning("the prefill engine was lost; prompts are computed here", extra={"reason": problem})
            reported = True

    def _serve(self, peer: zmq.Socket[bytes], monitor: ConnectionMonitor) -> str | None:
        """Pass on commands and take blocks. Returns why the connection is over; None where this end closes it."""
        poller = zmq.Poller()
        for each in (peer, self._commands, monitor.fileno()):
            poller.register(each, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            monitor.read()
            if monitor.broken:
                return "the connection broke"
            if self._commands in ready:
                command = self._commands.recv()
                if command == _CLOSE:
                    return None
                if self._generation is not None:  # else its job has ended with the connection
                    peer.send(command)
            if peer in ready:
                try:
                    self._handle(peer, peer.recv_multipart(copy=False))
                except BadBlockError as error:
                    return error.reason

    def _handle(self, peer: zmq.Socket[bytes], frames: list[zmq.Frame]) -> None:
        try:
            message = self._decoder.decode(frames[0].buffer)
        except msgspec.DecodeError:
            raise BadBlockError("frame") from None
        if len(frames) != (3 if isinstance(message, Block) else 1):
            raise BadBlockError("frame")
        if isinstance(message, Block):
            peer.send(self._encoder.encode(Received(1)))
        if isinstance(message, Welcome):
            with self._lock:
                self._generation = self._generation or message.generation
        elif isinstance(message, Rejected):
            log.error("the prefill engine refused this one; prompts are computed here: %s", message.reason)
        elif message.generation != self._generation:
            self._count("stale")
        else:
            with self._lock:
                job = self._jobs.get(message.job)
            if job is None:
                return  # it was cancelled
            if isinstance(message, Done):
                problem = message.problem
            else:
                problem = self._take(message, job, frames[1].buffer, frames[2].buffer)
            if isinstance(message, Done) or problem or not job.missing or job.fetch.ended:
                self._end(message.job, job, problem)
                if job.missing:
                    peer.send(self._encoder.encode(Cancel(message.job)))

    def _take(self, message: Block, job: _Job, head: memoryview, contents: memoryview) -> str:
        if not 0 <= message.index < len(job.names):
            raise BadBlockError("frame")
        name, fetch = job.names[message.index], job.fetch
        try:
            header = parse_header(head)
            block = BlockId(name, self._greeting.model, tenant_digest(fetch.tenant), fetch.scope)
            if header.flags or header.block != block or len(contents) != self._greeting.block_bytes:
                raise BadBlockError("other block")
            header.check(contents)
        except BadBlockError as error:
            return error.reason
        if self._tiers.receive(fetch, name, contents):
            with self._lock:
                self._blocks += 1
                job.missing.discard(message.index)
        return ""

    def _end(self, number: int, job: _Job, problem: str) -> None:
        """Nothing more is waited for: all has come, or the rest is computed here."""
        with self._lock:
            self._jobs.end(number, job, SYSTEM_CLOCK.now())
        if problem:
            self._count(problem)
        job.fetch.ended = True

    def _disconnect(self) -> bool:
        """End all jobs; returns whether the other process was reached."""
        with self._lock:
            was_reached, self._generation = self._generation is not None, None
            jobs = self._jobs.cancel_all()
        for job in jobs:
            self._count("disconnected")
            job.fetch.ended = True
        return was_reached

    def _count(self, reason: str) -> None:
        with self._lock:
            self._dropped[reason] = self._dropped.get(reason, 0) + 1
