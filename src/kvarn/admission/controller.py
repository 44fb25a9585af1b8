"""Whether a request goes to the engine, waits, or is refused: the policy of one model, told the time.

Without load shedding everything goes to the engine at once, whose queue is fair and bounded; only batch work waits
here for idle capacity. With load shedding

* a request goes when its turn has come (`FairQueue`) and it keeps nobody from the targets: those that run keep their
  TPOT, and few prompts wait inside the engine, so that the order stays to be decided here, as late as possible;
* it waits as long as it is predicted to have its first token in time;
* else it is refused at once, and told when it will be taken (`RetrySlots`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from kvarn.admission.demand import Demand
from kvarn.admission.engine_view import EngineView
from kvarn.admission.fair_queue import FairQueue
from kvarn.admission.predictor import OUT_OF_REACH, Load, Mix, Predictor
from kvarn.admission.retries import LONGEST_RETRY_S, RetrySlots
from kvarn.admission.traffic import Traffic
from kvarn.wire.messages import EngineStats

MARGIN = 0.9
"""Part of a target that a prediction may reach: single answers stray from the mean, and a miss serves nobody."""
BATCH_SHARE = 0.8
"""Part of the engine that may be full for batch work still to go: the rest takes interactive requests at once."""
PEAK_S = 30.0
"""Batch work leaves the places that interactive requests had lately; after so long
about a third of a peak still counts."""
PREFILL_WINDOW = 0.25
"""Part of the TTFT target for which prompts may wait inside the engine, where their order is decided no more."""
OVERTAKEN = 0.6
"""Part of its share that a tenant with requests waiting is expected to get: others with a better claim come later."""
SEEK_LATE_S = 0.04
"""How often those that wait in vain are sought: it looks at each tenant."""


class Reason(StrEnum):
    """Why a request is refused."""

    OVERLOADED = "overloaded"
    """It would be too late, whoever sent it."""
    OVER_SHARE = "over_share"
    """It would be too late because its own tenant has more than its share under way."""
    QUEUE_FULL = "queue_full"
    """As many wait as may."""
    QUEUE_TIMEOUT = "queue_timeout"
    """It has waited as long as it may."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request is refused."""

    reason: Reason
    retry_after_s: float
    """How late it would be; > 0."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Targets and bounds of one model."""

    ttft_target_s: float
    tpot_target_s: float
    load_shedding: bool
    max_queue: int
    max_queue_s: float | None


class AdmissionController:
    """Decides for one model. Not thread-safe: one event loop owns it."""

    def __init__(self, rules: Rules, view: EngineView, traffic: Traffic, ageing_s: float) -> None:
        self.queue = FairQueue(ageing_s)
        self._rules = rules
        self._view = view
        self._traffic = traffic
        self._slots = RetrySlots()
        self._preparing: set[Demand] = set()
        """Accepted before they were parsed; they come again when they are tokenized."""
        self._late_sought = -math.inf
        self._batch_rows = 0
        self._peak = 0.0
        """Rows that were not batch work's, at most, lately."""
        self._peak_at = 0.0
        self._verdicts: list[tuple[Demand, Refusal | None]] = []

    def hear(self, stats: EngineStats, now: float) -> None:
        """Take the engine's latest statistics."""
        self._view.hear(stats, now)

    def offer(self, demand: Demand, now: float) -> Refusal | None:
        """A request has come. Where it is not refused, `poll` says when it goes, or that it is refused later."""
        if not (self._rules.load_shedding or demand.is_batch):
            self._arrive(demand, now)
            self._send(demand, now)
            self._verdicts.append((demand, None))
            return None
        refusal = self._decide(demand, now) or self._make_place(demand, now)
        if refusal is not None:
            self.queue.refuse(demand, now)
            return refusal
        self.queue.push(demand)
        return None

    def accept(self, demand: Demand, now: float) -> Refusal | None:
        """Decide on a request before its prompt is known exactly. One that is not refused is `dropped` later, and then
        perhaps offered as accepted."""
        refusal = self._decide(demand, now)
        if refusal is None:
            demand.accepted = True
            self._preparing.add(demand)
        else:
            self.queue.refuse(demand, now)
        return refusal

    def dropped(self, demand: Demand) -> None:
        """An accepted request is prepared, or will not be."""
        self._preparing.discard(demand)

    def retry_after_s(self, demand: Demand, refusal: Refusal, now: float) -> float:
        """When a refused request shall come again; where it is known by a key, it will be taken then."""
        predictor = self._view.predictor
        if predictor is None or demand.key is None or not demand.is_interactive:
            return refusal.retry_after_s
        load, mix = self._situation(demand, now)
        row_s = predictor.row_s(max(1, load.rows), mix)
        charged_s = predictor.service_s(_average(mix, demand), row_s) * demand.cost / max(1.0, mix.cost)
        service_s, share = predictor.service_s(demand, row_s), self.queue.share(demand, now)
        return self._slots.give(demand.key, service_s, charged_s, share, refusal.retry_after_s, now)

    def poll(self, now: float) -> list[tuple[Demand, Refusal | None]]:
        """What has been decided on waiting requests: None where one goes to the engine now."""
        self._note_peak(now)
        verdicts, self._verdicts = self._verdicts, []
        if now - self._late_sought >= SEEK_LATE_S:
            self._late_sought = now
            verdicts += self._turn_away_late(now)
        while (demand := self.queue.first(now)) is not None:
            load, mix = self._situation(demand, now)
            if not self._can_go(demand, load, mix):
                break
            self.queue.remove(demand)
            self._release(demand, now, load, mix)
            verdicts.append((demand, None))
        return verdicts

    def withdraw(self, demand: Demand) -> None:
        """A waiting request's client has left."""
        self.queue.remove(demand)

    def ended(
        self,
        demand: Demand,
        now: float,
        *,
        prompt: int,
        cached: int,
        output: int,
        finished: bool,
    ) -> None:
        """A request that went to the engine is over.

        Args:
            demand: The request.
            now: Monotonic seconds.
            prompt: Tokens of its prompt.
            cached: Those found in the prefix cache.
            output: Tokens of its answer.
            finished: It had all it asked for, and says what is usual.
        """
        self._batch_rows -= demand.sequences * demand.is_batch
        self.queue.settle(demand, self._traffic.cost(prompt - cached, output))
        self._view.ended(demand, now)
        if finished:
            self._traffic.learn(demand.tenant, prompt, cached, output)

    def would_refuse(self, demand: Demand, now: float) -> bool:
        """Whether a request that came now would be refused. Nothing of it is kept."""
        self._arrive(demand, now)
        return len(self.queue) >= self._rules.max_queue or self.foretell(demand, now) is not None

    def foretell(self, demand: Demand, now: float) -> Refusal | None:
        """Why a request that comes now would miss its first token's target; None where it would not."""
        predictor = self._view.predictor
        if predictor is None or not (demand.is_interactive and self._rules.load_shedding):
            return None
        target = self._ttft_limit_s(demand, predictor)
        late_s = self._ttft_s(demand, now, predictor) - target
        if late_s <= 0:
            return None
        others = self.queue.others_ask(demand, now)
        by_itself = others and self._ttft_s(demand, now, predictor, own=False) <= target
        return Refusal(Reason.OVER_SHARE if by_itself else Reason.OVERLOADED, min(late_s, LONGEST_RETRY_S))

    def _ttft_limit_s(self, demand: Demand, predictor: Predictor) -> float:
        return max(MARGIN * self._rules.ttft_target_s, OUT_OF_REACH * predictor.alone_s(demand))

    def _arrive(self, demand: Demand, now: float) -> None:
        demand.cost = self._traffic.cost(demand.prompt_tokens, demand.output_tokens)
        self.queue.arrive(demand, now)

    def _decide(self, demand: Demand, now: float) -> Refusal | None:
        self._arrive(demand, now)
        if demand.accepted:
            return None
        demand.promised = demand.key is not None and self._slots.use(demand.key, now)
        return None if demand.promised else self.foretell(demand, now)

    # Predicting ------------------------------------------------------------------------------------------------------

    def _situation(self, demand: Demand, now: float) -> tuple[Load, Mix]:
        mix = self._traffic.mix(demand.prompt_tokens)
        return self._view.load(demand.priority, now, mix), mix

    def _ttft_s(self, demand: Demand, now: float, predictor: Predictor, *, own: bool = True) -> float:
        """From the request's arrival to its first token, if it waits its turn."""
        load, mix = self._situation(demand, now)
        waits_s = 0.0
        ahead = self.queue.ahead_of(demand, now, own=own)
        before = [*ahead.demands, *(each for each in self._preparing if own or each.tenant != demand.tenant)]
        share = self.queue.share(demand, now)
        held_s = self._slots.held_s(demand.tenant, share, now, now + self._ttft_limit_s(demand, predictor), own=own)
        if before or ahead.unsent_cost or held_s or not self._has_place(demand, load, mix):
            row_s = predictor.row_s(max(1, load.rows), mix)
            average_s = predictor.service_s(_average(mix, demand), row_s)
            waits_s = held_s + sum([predictor.service_s(each, row_s) for each in before])
            mine_s = sum([predictor.service_s(each, row_s) for each in before if each.tenant == demand.tenant])
            waits_s = max(waits_s, mine_s / (OVERTAKEN * share) if own else 0.0)
            waits_s += average_s * (0.5 + ahead.unsent_cost / max(1.0, mix.cost))
        waited_s = now - demand.received
        return waited_s + waits_s + predictor.first_token_s(demand, load, mix)

    def _has_place(self, demand: Demand, load: Load, mix: Mix) -> bool:
        """Whether the engine can hold one request more, and nobody misses the TPOT target because of it."""
        predictor, bounds = self._view.predictor, self._view.bounds
        if demand.is_batch and self._view.has_waiting:
            return False
        if predictor is None or load.rows == 0:
            return True
        share = BATCH_SHARE if demand.is_batch else 1.0
        taken = max(load.rows, self._batch_rows + math.ceil(self._peak)) if demand.is_batch else load.rows
        rows = taken + demand.sequences
        grown = demand.prompt_tokens + demand.output_tokens
        if rows > bounds.max_num_seqs * share or grown > load.free_kv_tokens:
            return False
        reachable = OUT_OF_REACH * predictor.decode_s(1, grown)
        target = max(MARGIN * self._rules.tpot_target_s, reachable)
        return predictor.tpot_s(rows, load.context * taken / load.rows + grown, mix) <= target * share

    def _can_go(self, demand: Demand, load: Load, mix: Mix) -> bool:
        """Whether a request whose turn it is goes now."""
        return self._has_place(demand, load, mix) and self._takes_prompts(load, mix)

    def _takes_prompts(self, load: Load, mix: Mix) -> bool:
        """Whether few enough prompts wait inside the engine."""
        predictor = self._view.predictor
        if predictor is None or load.rows == 0:
            return True
        work_s = load.prefill_tokens * predictor.token_s(mix)
        wait_s = predictor.prefill_s(load.prefill_tokens, work_s, load.decoding, load.context)
        return wait_s <= PREFILL_WINDOW * self._rules.ttft_target_s

    def _note_peak(self, now: float) -> None:
        """Follow the rows that are not batch work's: up at once, down slowly."""
        rows = self._view.rows - self._batch_rows
        self._peak = max(float(rows), self._peak * math.exp((self._peak_at - now) / PEAK_S))
        self._peak_at = now

    # Deciding --------------------------------------------------------------------------------------------------------

    def _release(self, demand: Demand, now: float, load: Load, mix: Mix) -> None:
        predictor = self._view.predictor
        if predictor is not None:
            demand.predicted_ttft_s = now - demand.received + predictor.first_token_s(demand, load, mix)
        self._send(demand, now)

    def _send(self, demand: Demand, now: float) -> None:
        demand.released = now
        self._batch_rows += demand.sequences * demand.is_batch
        self.queue.serve(demand)
        self._view.sent(demand, now)

    def _turn_away_late(self, now: float) -> list[tuple[Demand, Refusal | None]]:
        """Those at the head of their lines that have waited in vain."""
        verdicts: list[tuple[Demand, Refusal | None]] = []
        heads = self.queue.heads()
        while heads:
            late = [(head, refusal) for head in heads if (refusal := self._lateness(head, now)) is not None]
            for demand, refusal in late:
                self.queue.remove(demand)
                self.queue.refuse(demand, now)
                verdicts.append((demand, refusal))
            heads = self.queue.heads() if late else []
        return verdicts

    def _lateness(self, demand: Demand, now: float) -> Refusal | None:
        """Why a waiting request is hopeless; None where it is not."""
        waited = now - demand.received
        if not demand.is_interactive:
            over = self._rules.max_queue_s is not None and waited > self._rules.max_queue_s
            return Refusal(Reason.QUEUE_TIMEOUT, self._drain_s(demand, now)) if over else None
        predictor = self._view.predictor
        if predictor is None or demand.promised:
            return None
        load, mix = self._situation(demand, now)
        ttft_s = waited + predictor.first_token_s(demand, load, mix)
        late_s = ttft_s - self._ttft_limit_s(demand, predictor)
        return Refusal(Reason.OVERLOADED, max(late_s, self._drain_s(demand, now))) if late_s > 0 else None

    def _make_place(self, demand: Demand, now: float) -> Refusal | None:
        """Where the queue is full, the last of a worse tier gives way; else the newcomer does."""
        if len(self.queue) < self._rules.max_queue:
            return None
        if not len(self.queue) and self._can_go(demand, *self._situation(demand, now)):
            return None  # it will not have to wait
        last = self.queue.last()
        refusal = Refusal(Reason.QUEUE_FULL, self._drain_s(demand, now))
        if last is None or last.priority <= demand.priority:
            return refusal
        self.queue.remove(last)
        self.queue.refuse(last, now)
        self._verdicts.append((last, refusal))
        return None

    def _drain_s(self, demand: Demand, now: float) -> float:
        """Until all that waits has gone to the engine."""
        predictor = self._view.predictor
        if predictor is None:
            return 1.0
        load, mix = self._situation(demand, now)
        each_s = predictor.service_s(_average(mix, demand), predictor.row_s(max(1, load.rows), mix))
        return min(LONGEST_RETRY_S, max(0.1, len(self.queue) * each_s))


def _average(mix: Mix, like: Demand) -> Demand:
    """The average request."""
    return Demand(
        tenant=like.tenant,
        prompt_tokens=mix.prompt_tokens,
        output_tokens=mix.output_tokens,
        received=like.received,
    )
