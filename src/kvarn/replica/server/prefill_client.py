"""The engine that answers, as it asks another for the blocks of long prompts (`engine.prefill_apart.PrefillPeer`).

The engine's thread only queues what is to be sent. One thread sends, another receives, verifies, and puts blocks into
the memory tier. Whatever goes wrong ends the job, and the engine computes what has not come.
"""

from __future__ import annotations

import logging
import queue
import socket
import threading
import time
from dataclasses import dataclass, field

from kvarn.engine.memory.remote_prefill import PeerLoad
from kvarn.engine.plan import KVFetch
from kvarn.engine.request import Sequence
from kvarn.kvstore import BadBlockError, TieredStore
from kvarn.kvstore.exchange import (
    STALL_S,
    VERSION,
    Ask,
    Block,
    Cancel,
    Channel,
    Done,
    Forget,
    FromPrefill,
    Greeting,
    Welcome,
)
from kvarn.kvstore.fetch import Fetch
from kvarn.kvstore.record import HEADER_BYTES, BlockId, parse_header, tenant_digest
from kvarn.wire.messages import KVTierStats, Submit
from kvarn.wire.sampling import SamplingParams

_RECONNECT_S = 0.2
_SMOOTHING = 0.3

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Job:
    fetch: Fetch
    names: list[bytes]
    tokens: int
    asked_s: float
    missing: set[int] = field(default_factory=set)


class PrefillClient:
    """Asks the engine that listens at a path, and connects to it again when it was started again."""

    def __init__(self, tiers: TieredStore, path: str, model: bytes, block_bytes: int) -> None:
        self._tiers = tiers
        self._path = path
        self._model = model
        self._block_bytes = block_bytes
        self._lock = threading.Lock()
        """Of the jobs and the counts."""
        self._jobs: dict[int, _Job] = {}
        self._next_job = 1
        self._token_s = 0.0
        self._busy_until_s = 0.0
        self._blocks = 0
        self._dropped: dict[str, int] = {}
        self._channel: Channel | None = None
        self._closed = threading.Event()
        self._unsent: queue.SimpleQueue[Ask | Cancel | Forget | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=loop, name="kvarn-prefill-client", daemon=True)
            for loop in (self._send_on, self._receive_on)
        ]
        for thread in self._threads:
            thread.start()

    # The engine's thread ----------------------------------------------------------------------------------------------

    def load(self) -> PeerLoad | None:
        """See `PrefillPeer`."""
        if self._channel is None:
            return None
        with self._lock:
            return PeerLoad(sum([job.tokens for job in self._jobs.values()]), self._token_s)

    def prefill(self, sequence: Sequence, names: list[bytes], scope: bytes) -> KVFetch | None:
        """See `PrefillPeer`."""
        request = sequence.request
        if self._channel is None:
            return None
        fetch = self._tiers.expect(sequence.fetch.block_names, request.scope.tenant, scope)
        if fetch is None:
            return None
        with self._lock:
            number, self._next_job = self._next_job, self._next_job + 1
            job = self._jobs[number] = _Job(fetch, names, sequence.num_prompt, time.monotonic())
            job.missing.update(range(len(names)))
        fetch.on_release = lambda: self._cancel(number)
        submit = Submit(
            request_id=f"prefill-{number}",
            prompt_token_ids=request.prompt,
            sampling=SamplingParams(seed=0, max_tokens=0),
            tenant=request.scope.tenant,
            weight=request.account.weight,
            priority=request.priority,
            cache_salt=request.scope.salt,
            adapter=request.scope.adapter,
        )
        self._unsent.put(Ask(number, submit, names, scope))
        return fetch

    def forget(self, tenant: str) -> None:
        """Let the other engine forget a deleted tenant too."""
        self._unsent.put(Forget(tenant))

    def stats(self) -> KVTierStats:
        """What has come."""
        with self._lock:
            size = self._blocks * self._block_bytes
            return KVTierStats(stored_bytes_total=size, dropped_total=dict(self._dropped))

    def close(self) -> None:
        """End the connection. Idempotent."""
        self._closed.set()
        self._unsent.put(None)
        if (channel := self._channel) is not None:
            channel.close()
        for thread in self._threads:
            thread.join(2 * STALL_S)

    def _cancel(self, number: int) -> None:
        with self._lock:
            job = self._jobs.pop(number, None)
        if job is not None:
            self._unsent.put(Cancel(number))

    # The thread that sends --------------------------------------------------------------------------------------------

    def _send_on(self) -> None:
        while (message := self._unsent.get()) is not None:
            channel = self._channel
            if channel is None:
                continue  # its jobs have ended with the connection
            try:
                channel.send(message)
            except OSError:
                channel.close()  # the other thread notices

    # The thread that receives -----------------------------------------------------------------------------------------

    def _receive_on(self) -> None:
        reported = ""
        while not self._closed.is_set():
            try:
                self._serve_connection()
                problem = ""
            except (OSError, BadBlockError) as error:
                problem = str(error)
            finally:
                self._disconnect()
            if problem and problem != reported and not self._closed.is_set():
                log.warning("the prefill engine cannot be used: prompts are computed here", extra={"reason": problem})
                reported = problem
            self._closed.wait(_RECONNECT_S)

    def _serve_connection(self) -> None:
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connected.settimeout(STALL_S)
        connected.connect(self._path)
        channel = Channel(connected, FromPrefill, HEADER_BYTES + self._block_bytes)
        try:
            channel.send(Greeting(VERSION, self._model, self._block_bytes))
            welcome, _ = channel.receive()
            if not isinstance(welcome, Welcome):
                raise BadBlockError("frame")
            self._channel = channel
            while not self._closed.is_set():
                message, record = channel.receive()
                if not isinstance(message, Block | Done):
                    raise BadBlockError("frame")
                if message.generation != welcome.generation:
                    self._count("stale")
                    continue
                self._take(message, record)
        finally:
            channel.close()

    def _take(self, message: Block | Done, record: memoryview) -> None:
        with self._lock:
            job = self._jobs.get(message.job)
        if job is None:
            return  # nobody waits for it any more
        if isinstance(message, Done):
            self._end(message.job, job, message.problem)
            return
        if not 0 <= message.index < len(job.names):
            raise BadBlockError("frame")
        name, fetch = job.names[message.index], job.fetch
        try:
            header = parse_header(record[:HEADER_BYTES])
            if header.flags or header.block != BlockId(name, self._model, tenant_digest(fetch.tenant), fetch.scope):
                raise BadBlockError("other block")
            header.check(record[HEADER_BYTES:])
        except BadBlockError as error:
            self._end(message.job, job, error.reason)
            return
        self._tiers.receive(fetch, name, record[HEADER_BYTES:])
        with self._lock:
            self._blocks += 1
            job.missing.discard(message.index)
        if not job.missing:
            self._end(message.job, job)

    def _end(self, number: int, job: _Job, problem: str = "") -> None:
        """Nothing more is waited for: all has come, or the rest is computed here."""
        with self._lock:
            self._jobs.pop(number, None)
            now = time.monotonic()
            if not job.missing:
                seconds = (now - max(job.asked_s, self._busy_until_s)) / job.tokens
                self._token_s += (seconds - self._token_s) * (_SMOOTHING if self._token_s else 1.0)
            self._busy_until_s = now
        if problem:
            self._count(problem)
        if job.missing:
            self._unsent.put(Cancel(number))
        job.fetch.ended = True

    def _disconnect(self) -> None:
        self._channel = None
        with self._lock:
            jobs, self._jobs = list(self._jobs.values()), {}
        for job in jobs:
            self._count("disconnected")
            job.fetch.ended = True

    def _count(self, reason: str) -> None:
        with self._lock:
            self._dropped[reason] = self._dropped.get(reason, 0) + 1
