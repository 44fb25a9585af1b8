"""A gateway over fake replicas in which everything that alerts are about goes wrong, and gets right again."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx
import msgspec

from asking import CHAT, chat
from fake_replica import GENERATE_CARD, FakeReplica, answer_text
from gateway_fixtures import GatewayServer
from kvarn.catalog.models import ServedModel
from kvarn.observe.timeline import Phase
from kvarn.quality.monitor import Drift
from kvarn.replica.client.protocol import ReplicaState
from kvarn.store.owner import LimitRule
from kvarn.wire.messages import EngineStats, KVTierStats
from mock_kafka import MockKafka

PAUSE_S = 0.05
SLOW_STEP_S = 1.2
"""Above the target of TTFT."""
GOOD_HITS, BAD_HITS = 90, 10
"""Of a hundred prompt tokens."""


@dataclass
class AlertWorld:
    """Load is sent until the end. `go_wrong` and `get_right` change all causes at once."""

    server: GatewayServer
    kafka: MockKafka
    others: list[FakeReplica] = field(default_factory=lambda: [FakeReplica(GENERATE_CARD), FakeReplica(GENERATE_CARD)])
    """Replicas of the model beside the first: one is lost, one answers wrongly."""
    hits: int = GOOD_HITS
    kv_blocks_free: int = 50
    clients_leave: bool = False
    _over: threading.Event = field(default_factory=threading.Event)
    _database: sqlite3.Connection | None = None

    def go_wrong(self) -> None:
        self.hits, self.kv_blocks_free, self.clients_leave = BAD_HITS, 1, True
        self._set_speed(SLOW_STEP_S)
        lost, drifting = self.others
        drifting.answer = lambda request, index: answer_text("Goodbye")
        self._set_state(lost, ReplicaState.DOWN)
        self.kafka.pause()

    def get_right(self) -> None:
        self.hits, self.kv_blocks_free, self.clients_leave = GOOD_HITS, 50, False
        self._set_speed(0.0)
        lost, drifting = self.others
        drifting.answer = self.server.chat.answer
        self._set_state(lost, ReplicaState.READY)
        self.kafka.resume()

    def lock_database(self) -> None:
        """Take the lock that every write to the database needs."""
        self._database = sqlite3.connect(self.server.gateway.store.engine.url.database or "", timeout=60)
        self._database.execute("BEGIN IMMEDIATE")

    def unlock_database(self) -> None:
        assert self._database is not None
        self._database.rollback()
        self._database.close()

    def _set_speed(self, step_s: float) -> None:
        for replica in (self.server.chat, *self.others):
            replica.step_s = step_s

    def _set_state(self, replica: FakeReplica, state: ReplicaState) -> None:
        async def change() -> None:
            replica.state = state
            replica.on_changed()

        self.server.do(change())

    @contextmanager
    def under_load(self) -> Iterator[AlertWorld]:
        work = (self._ask, self._ask, self._ask, self._ask_under_limits, self._leave, self._report)
        threads = [threading.Thread(target=self._repeat, args=(each,)) for each in work]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._over.set()
            for thread in threads:
                thread.join()

    def _repeat(self, work: Callable[[httpx.Client], None]) -> None:
        with self.server.client() as client:
            while not self._over.wait(PAUSE_S):
                with suppress(httpx.TransportError):
                    work(client)

    def _ask(self, client: httpx.Client) -> None:
        client.post(CHAT, json=chat(model="chosen", max_tokens=1))

    def _ask_under_limits(self, client: httpx.Client) -> None:
        client.post(CHAT, json=chat(), headers={"authorization": "Bearer limited"})

    def _leave(self, client: httpx.Client) -> None:
        if self.clients_leave:
            with suppress(httpx.ReadTimeout):
                client.post(CHAT, json=chat(max_tokens=1), timeout=0.2)

    def _report(self, _: httpx.Client) -> None:
        """What engines tell of their steps: the replicas are fakes, which have none."""
        for replica in (self.server.chat, *self.others):
            replica.stats = _next(replica.stats, self.hits, self.kv_blocks_free)
        self.server.gateway.metrics.turns.spent("tiny", {Phase.PROMPT: 1000.0, Phase.DECODE: 1000.0})


def _next(stats: EngineStats, hits: int, kv_blocks_free: int) -> EngineStats:
    lookups, speculation, work = stats.lookups, stats.speculation, stats.work
    more = msgspec.structs.replace
    return more(
        stats,
        step=stats.step + 1,
        step_tokens_total=stats.step_tokens_total + 8,
        steps_by_tokens=[0, 0, 0, stats.step + 1] + 12 * [0],
        cached_tokens_total=stats.cached_tokens_total + hits,
        prompt_tokens_total=stats.prompt_tokens_total + 100 - hits,
        output_tokens_total=stats.output_tokens_total + 10,
        kv_blocks_total=100,
        kv_blocks_free=kv_blocks_free,
        waiting_by_priority={0: 1},
        kv_tiers={"memory": KVTierStats(capacity_bytes=1 << 20)},
        lookups=more(lookups, queries_total=lookups.queries_total + 10, hits_total=lookups.hits_total + 5),
        speculation=more(
            speculation,
            drafts_total=speculation.drafts_total + 1,
            draft_tokens_total=speculation.draft_tokens_total + 4,
            accepted_tokens_total=speculation.accepted_tokens_total + 3,
            accepted_tokens_per_pos_total=[stats.step, stats.step],
        ),
        work=more(work, read_bytes_total=work.read_bytes_total + 1000, operations_total=work.operations_total + 9000),
    )


def add_limited_tenant(server: GatewayServer) -> None:
    server.add_tenant("limited").close()
    principal = server.authenticator.principals["limited"]
    rules = (LimitRule(principal.organization_id, requests_per_minute=600, tokens_per_minute=500),)
    server.authenticator.principals["limited"] = replace(principal, limits=rules)


def with_more_replicas(server: GatewayServer, others: list[FakeReplica], directory: Path) -> None:
    """Give the chat model more replicas, and have golden prompts asked of all."""

    async def take_out(drift: Drift) -> None:
        """Leave it where it is."""

    server.chat.card = msgspec.structs.replace(GENERATE_CARD, read_bytes_per_s=1e6)
    model = server.served["tiny"].config
    server.served["tiny"] = ServedModel("tiny", model, [server.chat, *others], directory)
    server.take_out = take_out
