"""Sessions of agents in a KV cache half as large as their contexts: TTFT of the next turn by the order of eviction.

    python -m benchmarks.sessions                       the table of docs/internals/sessions.md
    python -m benchmarks.sessions --oversubscription 4  a smaller cache

One real engine on a virtual clock, with modelled step times: the figures do not depend on the machine. A session's
turns follow each other after the run of a tool or a person's pause, both log-normal (as learned online in
llm-d-router#2928), so each order of eviction has the same sessions, and a slow answer delays what follows it.

    resident    the cache holds everything: what the others are compared with
    lru         the block idle for longest goes
    ttl         as LRU, but what a session has left is pinned for a while (vLLM's RFC 37003)
    worth       what the engine does: seconds to compute again x probability of return
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from kvarn.clock.virtual import VirtualClock
from kvarn.config.engine import EngineConfig
from kvarn.costs.step_times import StepTimes
from kvarn.engine.core import EngineCore, EngineParts
from kvarn.engine.memory.eviction import ByAge, EvictionOrder
from kvarn.engine.memory.prefix_cache import PrefixNode
from kvarn.engine.memory.worth import ByWorth
from kvarn.engine.sessions.branch import Branch
from kvarn.engine.step_time import StepTimeModel
from kvarn.shapes import BLOCK_SIZE
from kvarn.wire.messages import Submit
from kvarn.wire.sampling import SamplingParams
from kvarn.wire.sessions import SessionEvent, SessionNews, SessionTurn
from kvarn.worker.modelled import ModelledExecutor

TIMES = StepTimes(fixed_s=8e-3, prefill_token_s=5e-5, prefill_pair_s=4e-9, decode_row_s=1e-4, decode_token_s=5e-8)
"""Of a GPU's size: 20,000 prompt tokens a second, 8 ms for a step of one sequence."""
CONTEXT = 1 << 16
VOCABULARY = 3000
Order = Callable[[Mapping[int, PrefixNode]], EvictionOrder]


class Pinned(ByWorth):
    """LRU, but for what sessions have left less than `ttl_s` ago: that goes when nothing else is there."""

    def __init__(self, nodes: Mapping[int, PrefixNode], ttl_s: float) -> None:
        super().__init__(nodes, lambda node: 1.0)
        self._ttl_s = ttl_s

    def worth(self, block: int) -> float:
        node = self._nodes.get(block)
        age_s = self._as_of_s - self._idle[block][1]
        of_session = node is not None and node.branch not in (None, Branch.ONCE, Branch.COMMON)
        return (1e6 if of_session and age_s < self._ttl_s else 0.0) - age_s


@dataclass(frozen=True)
class Turn:
    new_tokens: int  # tool's result, or what the person writes
    output_tokens: int
    calls_tools: bool
    gap_s: float  # until the next turn


@dataclass(frozen=True)
class Conversation:
    """What a client will do, whatever the engine's speed."""

    number: int
    begins_s: float
    prefix: int  # number of its system prompt
    turns: list[Turn]
    has_session: bool = True


@dataclass
class Running:
    conversation: Conversation
    tokens: list[int]
    turn: int = 0
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


def log_normal(chance: random.Random, median: float, sigma: float, most: float = math.inf) -> float:
    return min(median * math.exp(chance.gauss(0.0, sigma)), most)


def agents(count: int, every_s: float, seed: int) -> list[Conversation]:
    """Agents at work for a person: runs of tools (median 3 s), and the person's pauses (median 60 s) one turn in six;
    24 turns in the median, some 500 new tokens each."""
    chance, begins_s, made = random.Random(seed), 0.0, []
    for number in range(count):
        begins_s += chance.expovariate(1.0 / every_s)
        turns = []
        for place in range(max(2, int(log_normal(chance, 24, 0.6, 80)))):
            calls = chance.random() > 1 / 6
            turns.append(
                Turn(
                    new_tokens=int(log_normal(chance, 900 if place == 0 else 300, 0.8, 4000)) + 1,
                    output_tokens=int(log_normal(chance, 60, 0.6, 400)) + 1,
                    calls_tools=calls,
                    gap_s=log_normal(chance, 3.0, 1.2, 300) if calls else log_normal(chance, 60.0, 1.0, 1200),
                )
            )
        made.append(Conversation(number, begins_s, chance.randrange(4), turns))
    return made


def strangers(count: int, every_s: float, seed: int) -> list[Conversation]:
    """Single requests without sessions: few-shot prompts and documents that many share, by Zipf's law."""
    chance, begins_s, made = random.Random(seed), 0.0, []
    weights = [1.0 / rank for rank in range(1, 401)]
    prefixes = chance.choices(range(100, 500), weights, k=count)
    for number in range(count):
        begins_s += chance.expovariate(1.0 / every_s)
        turn = Turn(int(log_normal(chance, 80, 0.5, 400)) + 1, int(log_normal(chance, 40, 0.5, 200)) + 1, False, 0.0)
        made.append(Conversation(10_000_000 + number, begins_s, prefixes[number], [turn], has_session=False))
    return made


def text(seed: int, length: int) -> list[int]:
    chance = random.Random(seed)
    return [300 + chance.randrange(VOCABULARY) for _ in range(length)]


class Run:
    """One engine, and the clients of some conversations."""

    def __init__(self, conversations: list[Conversation], num_blocks: int, order: Order | None) -> None:
        self._clock = VirtualClock()
        executor = ModelledExecutor(TIMES.seconds, self._clock, num_blocks=num_blocks, max_context_length=CONTEXT)
        config = EngineConfig(max_waiting_requests=1_000_000, max_waiting_tokens=1_000_000_000)
        parts = EngineParts(executor, config, step_time=StepTimeModel.knowing(TIMES), eviction=order)
        self._core = EngineCore(parts, self._clock.now)
        self._running: dict[str, Running] = {}
        self._order = 0
        self._arrivals: list[tuple[float, int, Running]] = []
        self._live = 0
        self.outcome = Outcome()
        for each in conversations:
            self._arrive(each.begins_s, Running(each, text(-1 - each.prefix, 1500)))

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

    def _arrive(self, moment: float, running: Running) -> None:
        self._order += 1
        heapq.heappush(self._arrivals, (moment, self._order, running))

    def _send(self, running: Running) -> None:
        what, turn = running.conversation, running.conversation.turns[running.turn]
        if running.turn == 0:
            self._live += len(running.tokens)
        running.tokens += text(what.number * 1000 + running.turn, turn.new_tokens)
        running.sent_s, running.waits = self._clock.now(), True
        self._live += turn.new_tokens + turn.output_tokens
        request_id = f"{what.number}-{running.turn}"
        self._running[request_id] = running
        session = SessionTurn(id=what.number.to_bytes(8)) if what.has_session else None
        sampling = SamplingParams(seed=0, max_tokens=turn.output_tokens)
        self._core.add(
            Submit(request_id=request_id, prompt_token_ids=list(running.tokens), sampling=sampling, session=session)
        )

    def _step(self) -> None:
        for delta in self._core.step().deltas:
            running = self._running[delta.request_id]
            what = running.conversation
            if running.waits:
                running.waits = False
                if running.turn or not what.has_session:
                    self.outcome.ttft_s.append(self._clock.now() - running.sent_s)
                    self.outcome.prompt += len(running.tokens)
                    self.outcome.cached += delta.cached_tokens
            running.tokens += delta.token_ids
            if delta.finish_reason is not None:
                self._end_turn(running)
                del self._running[delta.request_id]

    def _end_turn(self, running: Running) -> None:
        what, turn = running.conversation, running.conversation.turns[running.turn]
        self.outcome.live_tokens.append(self._live)
        running.turn += 1
        if turn.calls_tools and what.has_session:
            self._core.take_session_news(
                SessionNews(
                    session=what.number.to_bytes(8),
                    event=SessionEvent.CALLED_TOOLS,
                    turn=f"{what.number}-{running.turn - 1}",
                )
            )
        if running.turn < len(what.turns):
            self._arrive(self._clock.now() + turn.gap_s, running)
        else:
            self._live -= len(running.tokens)


ORDERS: dict[str, Order | None] = {
    "lru": lambda nodes: ByAge(),
    "ttl": partial(Pinned, ttl_s=60.0),
    "worth": None,
}


def compare(name: str, conversations: list[Conversation], oversubscription: float) -> None:
    resident = Run(conversations, 1 << 20, ORDERS["lru"]).finish()
    live = statistics.quantiles(resident.live_tokens, n=10)[-1]  # all but the busiest tenth of the time
    num_blocks = int(live / oversubscription / BLOCK_SIZE)
    print(
        f"\n{name}: {len(conversations)} conversations, {len(resident.ttft_s)} turns counted, "
        f"{resident.prompt / max(1, len(resident.ttft_s)):.0f} prompt tokens on average, contexts of "
        f"{live:.0f} tokens live at once, cache of {num_blocks * BLOCK_SIZE}"
    )
    print("order        TTFT p50      p95     mean  p50 / resident  p95 / resident   hits   busy")
    for order, outcome in _outcomes(conversations, num_blocks, resident):
        p50, p95 = outcome.quantile(0.5), outcome.quantile(0.95)
        print(
            f"{order:<10} {p50 * 1e3:>7.0f} ms {p95 * 1e3:>5.0f} ms {statistics.fmean(outcome.ttft_s) * 1e3:>5.0f} ms "
            f"{p50 / resident.quantile(0.5):>15.2f} {p95 / resident.quantile(0.95):>15.2f} {outcome.hit_rate:>6.1%} "
            f"{outcome.busy_s / outcome.ends_s:>6.0%}",
            flush=True,
        )


def _outcomes(conversations: list[Conversation], num_blocks: int, resident: Outcome) -> Iterator[tuple[str, Outcome]]:
    yield "resident", resident
    for name, order in ORDERS.items():
        yield name, Run(conversations, num_blocks, order).finish()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--every-s", type=float, default=12.0, help="seconds between two sessions' beginnings")
    parser.add_argument("--oversubscription", type=float, default=2.0, help="live contexts over the cache's size")
    parser.add_argument("--strangers", type=int, default=3000, help="single requests without sessions")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    sessions = agents(arguments.sessions, arguments.every_s, arguments.seed)
    compare("agents", sessions, arguments.oversubscription)
    others = strangers(arguments.strangers, 0.25, arguments.seed)
    compare("no sessions", others, 1.0)
    last = max(each.begins_s for each in sessions)
    compare("both", sessions + [each for each in others if each.begins_s < last], arguments.oversubscription)


if __name__ == "__main__":
    main()
