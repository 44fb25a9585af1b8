"""Sessions of agents in a KV cache half as large as their contexts: TTFT of the next turn by the order of eviction.

    python -m benchmarks.sessions                       the table of docs/internals/sessions.md
    python -m benchmarks.sessions --oversubscription 4  a smaller cache

One real engine on a virtual clock, with modelled step times: the figures do not depend on the machine. A session's
turns follow each other after the run of a tool or a person's pause, both log-normal (as llm-d-router#2928 learns them),
so each order of eviction has the same sessions, and a slow answer delays what follows it.

    resident    the cache holds everything: what the others are compared with
    lru         the block idle for longest goes
    ttl         as LRU, but what waits for a tool is pinned for a minute (Continuum, arXiv 2511.02230)
    value       what the engine does: seconds to compute again x probability of return
    tiered      the same, with a tier in main memory that holds everything
    oracle      what comes back last goes: it knows the future
"""

from __future__ import annotations

import argparse
import heapq
import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from benchmarks.agent_sessions import PREFIX_TOKENS, VOCABULARY, agents, context_tokens, strangers
from kvarn.clock.virtual import VirtualClock
from kvarn.config.engine import EngineConfig
from kvarn.config.kv_tiers import KVTiersConfig
from kvarn.costs.step_times import StepTimes
from kvarn.engine.core import EngineCore, EngineParts
from kvarn.engine.memory.block_value import ByValue
from kvarn.engine.memory.eviction import EvictionOrder, LeastRecentlyUsed
from kvarn.engine.memory.prefix_cache import PrefixNode
from kvarn.engine.sessions.branch import Branch, TurnEnd
from kvarn.engine.step_time import StepTimeModel
from kvarn.shapes import BLOCK_SIZE
from kvarn.simulator.host_memory import host_memory, move_blocks
from kvarn.traffic.conversation import Conversation
from kvarn.traffic.course import DueTurn, first_turn
from kvarn.wire.messages import Submit
from kvarn.wire.sampling import SamplingParams
from kvarn.wire.sessions import SessionEvent, SessionNews, SessionTurn
from kvarn.worker.modelled import ModelledExecutor

TIMES = StepTimes(fixed_s=8e-3, prefill_token_s=5e-5, prefill_pair_s=4e-9, decode_row_s=1e-4, decode_token_s=5e-8)
"""Of a GPU's size: 20,000 prompt tokens a second, 8 ms for a step of one sequence."""
CONTEXT = 1 << 16
BLOCK_BYTES = 2 << 20
LOAD_BLOCK_S = 1e-4  # of a block from main memory, at 20 GB/s
Order = Callable[[Mapping[int, PrefixNode]], EvictionOrder]


class Pinned(ByValue):
    """LRU, but for what has waited for a tool for less than `ttl_s`: that goes when nothing else is there."""

    def __init__(self, nodes: Mapping[int, PrefixNode], ttl_s: float) -> None:
        super().__init__(nodes, lambda node: 1.0)
        self._ttl_s = ttl_s

    def value(self, block: int) -> float:
        branch, age_s = self.branch(block), self._as_of_s - self._idle[block][1]
        is_pinned = branch.end is TurnEnd.TOOL_CALLS and age_s < self._ttl_s
        return (1e6 if is_pinned else 0.0) - age_s

    def branch(self, block: int) -> Branch:
        node = self._nodes.get(block)
        return Branch.ONCE if node is None or node.branch is None else node.branch


class Oracle(Pinned):
    """What comes back last goes first. `next_s`: when each conversation does."""

    def __init__(self, nodes: Mapping[int, PrefixNode], next_s: dict[Branch, float]) -> None:
        super().__init__(nodes, 0.0)
        self._next_s = next_s

    def value(self, block: int) -> float:
        branch = self.branch(block)
        if branch in (Branch.ONCE, Branch.COMMON):
            return -100.0 - (self._as_of_s - self._idle[block][1])
        return 0.0 if branch.active else self._as_of_s - self._next_s.get(branch, math.inf)


@dataclass
class Running:
    due: DueTurn
    number: int  # of its conversation
    tokens: list[int] = field(default_factory=list)
    answers: dict[int, list[int]] = field(default_factory=dict)  # by the keys by which later turns repeat them
    sent_s: float = 0.0
    waits: bool = True  # for its first token


@dataclass
class Outcome:
    """What came of a run. Lists are of turns after a conversation's first, or of single requests."""

    ttft_s: list[float] = field(default_factory=list)
    cached: int = 0
    prompt: int = 0
    busy_s: float = 0.0
    ends_s: float = 0.0
    live_tokens: list[int] = field(default_factory=list)  # of all conversations that go on, at each turn's end

    @property
    def hit_rate(self) -> float:
        return self.cached / max(1, self.prompt)

    def quantile(self, part: float) -> float:
        ordered = sorted(self.ttft_s)
        return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


class Run:
    """One engine, and the clients of some conversations."""

    def __init__(self, conversations: list[Conversation], num_blocks: int, order: str) -> None:
        self._clock = VirtualClock()
        self._next_s = next_s = dict[Branch, float]()  # when each conversation comes back
        memory = host_memory(KVTiersConfig(host_gib=2048), BLOCK_BYTES)  # it holds every block that was ever computed
        executor = ModelledExecutor(
            TIMES.seconds,
            self._clock,
            num_blocks=num_blocks,
            max_context_length=CONTEXT,
            transfer=lambda plan: move_blocks(memory, plan).loaded * LOAD_BLOCK_S,  # stores are hidden
        )
        config = EngineConfig(max_waiting_requests=1_000_000, max_waiting_tokens=1_000_000_000)
        eviction = partial(Oracle, next_s=next_s) if order == "oracle" else ORDERS[order]
        connector = memory if order == "tiered" else None
        step_time = StepTimeModel.knowing(TIMES)
        parts = EngineParts(executor, config, step_time=step_time, connector=connector, eviction=eviction)
        self._core = EngineCore(parts, self._clock.now)
        self._running: dict[str, Running] = {}
        self._order = 0
        self._arrivals: list[tuple[float, int, Running]] = []
        self._live = 0
        self.outcome = Outcome()
        for number, each in enumerate(conversations, start=1):
            self._arrive(Running(first_turn(each), number))

    def finish(self) -> Outcome:
        while self._arrivals or self._core.has_work():
            while self._arrivals and (self._arrivals[0][0] <= self._clock.now() or not self._core.has_work()):
                moment, _, running = heapq.heappop(self._arrivals)
                self._clock.move_to(moment)
                self._send(running)
            began = self._clock.now()
            self._step()
            self.outcome.busy_s += self._clock.now() - began
        self.outcome.ends_s = self._clock.now()
        return self.outcome

    def _arrive(self, running: Running) -> None:
        self._order += 1
        heapq.heappush(self._arrivals, (running.due.at_s, self._order, running))

    def _send(self, running: Running) -> None:
        due, turn, before = running.due, running.due.turn, len(running.tokens)
        running.tokens = [
            token
            for segment in turn.segments
            for token in running.answers.get(segment.key) or segment.token_ids(VOCABULARY, 0)
        ]
        running.sent_s, running.waits = self._clock.now(), True
        self._live += len(running.tokens) - before + turn.output_tokens
        request_id = f"{running.number}-{due.number}"
        self._running[request_id] = running
        session = SessionTurn(id=running.number.to_bytes(8)) if due.conversation.session else None
        sampling = SamplingParams(seed=0, max_tokens=turn.output_tokens)
        self._core.add(
            Submit(request_id=request_id, prompt_token_ids=list(running.tokens), sampling=sampling, session=session)
        )

    def _step(self) -> None:
        for delta in self._core.step().deltas:
            running = self._running[delta.request_id]
            if running.waits:
                running.waits = False
                if running.due.number or not running.due.conversation.session:
                    self.outcome.ttft_s.append(self._clock.now() - running.sent_s)
                    self.outcome.prompt += len(running.tokens)
                    self.outcome.cached += delta.cached_tokens
            running.tokens += delta.token_ids
            if delta.finish_reason is not None:
                self._end_turn(running)
                del self._running[delta.request_id]

    def _end_turn(self, running: Running) -> None:
        due, turn, name = running.due, running.due.turn, running.number.to_bytes(8)
        self.outcome.live_tokens.append(self._live)
        if turn.answer_key is not None:
            running.answers[turn.answer_key] = running.tokens[turn.prompt_tokens :]
        if turn.is_tool_call:
            called = SessionNews(session=name, event=SessionEvent.CALLED_TOOLS, turn=f"{running.number}-{due.number}")
            self._core.take_session_news(called)
        following = due.answered(self._clock.now())
        for each in following:
            running.due = each
            self._arrive(running)
        if not following:
            self._live -= len(running.tokens)
        session = self._core.scheduler.memory.sessions.get(name)
        if session is not None:
            self._next_s[session.branches[-1]] = following[0].at_s if following else math.inf


ORDERS: dict[str, Order | None] = {
    "lru": lambda nodes: LeastRecentlyUsed(),
    "ttl": partial(Pinned, ttl_s=60.0),
    "value": None,  # the engine's own
    "tiered": None,
}


def live_tokens(outcome: Outcome) -> float:
    """Tokens of the contexts that are live at once, but for the busiest tenth of the time."""
    return statistics.quantiles(outcome.live_tokens, n=10)[-1]


def compare(
    name: str, conversations: list[Conversation], resident: Outcome, cache_tokens: float, orders: Iterable[str]
) -> None:
    print(
        f"\n{name}: {len(conversations)} conversations, {len(resident.ttft_s)} turns counted, "
        f"{resident.prompt / max(1, len(resident.ttft_s)):.0f} prompt tokens on average, a cache of {cache_tokens:.0f}"
    )
    print("order        TTFT p50      p95     mean  p50 / resident  p95 / resident   hits   busy")
    _show("resident", resident, resident)
    for order in orders:
        _show(order, Run(conversations, int(cache_tokens / BLOCK_SIZE), order).finish(), resident)


def _show(order: str, outcome: Outcome, resident: Outcome) -> None:
    p50, p95 = outcome.quantile(0.5), outcome.quantile(0.95)
    print(
        f"{order:<10} {p50 * 1e3:>7.0f} ms {p95 * 1e3:>5.0f} ms {statistics.fmean(outcome.ttft_s) * 1e3:>5.0f} ms "
        f"{p50 / resident.quantile(0.5):>15.2f} {p95 / resident.quantile(0.95):>15.2f} {outcome.hit_rate:>6.1%} "
        f"{outcome.busy_s / outcome.ends_s:>6.0%}",
        flush=True,
    )


def resident(conversations: list[Conversation]) -> Outcome:
    return Run(conversations, 1 << 20, "lru").finish()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=120)
    parser.add_argument("--every-s", type=float, default=15.0, help="seconds between two sessions' beginnings")
    parser.add_argument("--oversubscription", type=float, default=2.0, help="live contexts over the cache's size")
    parser.add_argument("--strangers", type=int, default=1500, help="single requests without sessions")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    sessions = agents(arguments.sessions, arguments.every_s, arguments.seed)
    alone = resident(sessions)
    cache_tokens = max(live_tokens(alone) / arguments.oversubscription, *map(context_tokens, sessions))
    compare("agents", sessions, alone, cache_tokens, (*ORDERS, "oracle"))
    others = strangers(arguments.strangers, 0.4, arguments.seed)
    half = PREFIX_TOKENS * len({each.turns[0].segments[0].key for each in others}) / 2
    compare("no sessions", others, resident(others), half, ("lru", "value"))
    last = max(each.begins_s for each in sessions)
    both = sessions + [each for each in others if each.begins_s < last]
    compare("both", both, resident(both), cache_tokens, ("lru", "ttl", "value"))


if __name__ == "__main__":
    main()
