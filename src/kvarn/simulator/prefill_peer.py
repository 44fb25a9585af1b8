"""The engine that computes prompts for another one: a second simulated engine, whose blocks come by a link.

    answering engine ──ask──▶ this one computes the prompt, chunk by chunk, and stores its blocks
                     ◀─link── each block, one after the other, into the answering engine's host memory

Which prompts it gets is the product's choice (`engine.memory.remote_prefill`), as are the counts of what it has been
asked for. A block that it does not send is waited for as long as the engine waits for any.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass

from kvarn.config.kv_tiers import KVTiersConfig
from kvarn.engine.memory.remote_prefill import PeerLoad
from kvarn.engine.plan import BlockTransfer, KVFetch
from kvarn.engine.request import Sequence
from kvarn.kvstore import TieredStore
from kvarn.kvstore.fetch import Fetch
from kvarn.replica.server.prefill.jobs import PrefillJob, PrefillJobs, prompt_of
from kvarn.simulator.host_memory import NO_CONTENTS
from kvarn.simulator.replica import SimulatedReplica
from kvarn.simulator.world import World
from kvarn.wire.messages import Refused, TokenDelta


@dataclass(slots=True)
class _Job(PrefillJob):
    fetch: Fetch
    names: list[bytes]


class ModelledPeer:
    """The `PrefillPeer` of one replica, which starts and ends with it. `store`: the replica's host memory."""

    def __init__(self, world: World, replica: SimulatedReplica, store: TieredStore) -> None:
        model = replica.model
        assert model.peer_link is not None, "a scenario with `disaggregation` has a link"
        config = replica.config
        in_memory = (config.kv_tiers or KVTiersConfig()).model_copy(update={"disk_gib": 0.0})
        alone = {"disaggregation": None, "kv_tiers": in_memory}
        self.engine = SimulatedReplica(world, f"{replica.name}/prefill", config.model_copy(update=alone), model, self)
        self._world = world
        self._store = store
        self._link = model.peer_link
        self._block_s = model.block_bytes / model.peer_link.bytes_per_s
        self._free_at = 0.0  # when all blocks that were sent have left
        self._jobs = PrefillJobs[_Job]()
        self._wanted: dict[bytes, list[tuple[str, int]]] = {}
        """Jobs that wait for a block to be computed, by its name, with its place in the job."""
        self._asked = 0
        self.engine.start(0.0)
        assert self.engine.store is not None, "it keeps blocks for others"
        self._own = self.engine.store
        self._own.on_stored = self._stored

    def close(self) -> None:
        """Its replica ends."""
        self.engine.end()

    # The engine that answers asks ------------------------------------------------------------------------------------

    def load(self) -> PeerLoad | None:
        return self._jobs.load()

    def prefill(self, sequence: Sequence, names: list[bytes], scope: bytes) -> KVFetch | None:
        fetch = self._store.expect(sequence.fetch.block_names, sequence.request.scope.tenant, scope)
        if fetch is None:
            return None
        self._asked += 1
        key = f"prefill-{self._asked}"
        self._jobs.begin(key, _Job(sequence.num_prompt, self._world.now, set(range(len(names))), fetch, names))
        fetch.on_release = lambda: self._cancel(key)
        self._world.after(self._link.latency_s, self._ask, key, sequence)
        return fetch

    def _cancel(self, key: str) -> None:
        if self._jobs.cancel(key) is not None:
            self.engine.send(key)

    # This one computes and sends -------------------------------------------------------------------------------------

    def _ask(self, key: str, sequence: Sequence) -> None:
        job = self._jobs.get(key)
        if job is None:  # given up meanwhile
            return
        for index, name in enumerate(job.names):
            if self._own.is_loadable(name):
                self._send(key, index)
            else:
                self._wanted.setdefault(name, []).append((key, index))
        self.engine.send(prompt_of(sequence, key))

    def _stored(self, transfers: Many[BlockTransfer]) -> None:
        for transfer in transfers:
            for key, index in self._wanted.pop(transfer.name, ()):
                self._send(key, index)

    def _send(self, key: str, index: int) -> None:
        self._free_at = max(self._free_at, self._world.now) + self._block_s
        self._world.at(self._free_at + self._link.latency_s, self._arrive, key, index)

    def _arrive(self, key: str, index: int) -> None:
        job = self._jobs.get(key)
        if job is None:
            return
        if self._store.receive(job.fetch, job.names[index], NO_CONTENTS):
            job.missing.discard(index)
        if not job.missing or job.fetch.ended:
            self._end(key, job)

    def _end(self, key: str, job: _Job) -> None:
        self._jobs.end(key, job, self._world.now)
        job.fetch.ended = True

    # What its engine says --------------------------------------------------------------------------------------------

    def take_delta(self, replica: SimulatedReplica, delta: TokenDelta) -> None:
        """A prompt is computed; its last blocks are stored by the next step."""

    def take_refusal(self, replica: SimulatedReplica, refused: Refused) -> None:
        job = self._jobs.get(refused.request_id)
        if job is not None:
            self._end(refused.request_id, job)

    def lost(self, replica: SimulatedReplica) -> None:
        """Never: it ends with the replica that it is for."""

    emptied = lost
