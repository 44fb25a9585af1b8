"""Whether a request goes to the engine, waits, or is refused: the policy of one engine, the clock passed in.

Without load shedding everything goes to the engine at once, whose queue is fair and bounded; only batch work waits
here for idle capacity. With load shedding

* a request goes when its turn has come (`AdmissionQueue`) and the others keep their targets: those that run keep
  their TPOT, and few prompts wait inside the engine, so that the order stays to be decided here, as late as possible;
* it waits as long as it is predicted to have its first token in time;
* else it is refused at once, with the time after which it would not be late.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from kvarn.admission.demand import Demand
from kvarn.admission.engine_load import EngineLoad
from kvarn.admission.predictor import MARGIN, OUT_OF_REACH, Load, Mix, Predictor
from kvarn.admission.queue import AdmissionQueue
from kvarn.admission.traffic import Traffic
from kvarn.wire.messages import EngineStats

WAIT_MARGIN = 0.6
"""`MARGIN` on arrival: a request that may wait is not refused later, when others with a better claim have come."""
BATCH_SHARE = 0.8  # share of the engine up to which batch work is admitted; the rest is kept for interactive requests
PEAK_S = 30.0  # batch work leaves the rows that other requests had lately: a peak fades to a third in this time
PREFILL_WINDOW = 0.25
"""Share of the TTFT target for which prompts may wait inside the engine, where their order is fixed."""
OVERTAKEN = 0.6
"""Part of its share that a tenant with requests waiting is expected to get: others with a better claim come later."""
LONGEST_RETRY_S = 600  # no Retry-After is longer
SEEK_LATE_S = 0.04  # seconds between two searches for requests that wait in vain; each looks at all tenants


class Reason(StrEnum):
    OVERLOADED = "overloaded"  # its first token would be late, whichever tenant's it is
    OVER_SHARE = "over_share"  # its first token would be late because its own tenant has more than its share under way
    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"  # it has waited for the longest time allowed


@dataclass(frozen=True, slots=True)
class Refusal:
    reason: Reason
    retry_after_s: float  # seconds by which it would be late; > 0


@dataclass(frozen=True, slots=True)
class Rules:
    """Targets and bounds of one model."""

    ttft_target_s: float
    tpot_target_s: float
    load_shedding: bool
    max_queue: int
    max_queue_s: float | None


Decisions = list[tuple[Demand, Refusal | None]]  # None: the request goes to the engine now


class AdmissionController:
    """Decides for one engine. Not thread-safe: one event loop owns it."""

    def __init__(self, rules: Rules, load: EngineLoad, traffic: Traffic, ageing_s: float) -> None:
        self.queue = AdmissionQueue(ageing_s)
        self._rules = rules
        self._load = load
        self._traffic = traffic
        self._late_sought = -math.inf
        self._batch_rows = 0
        self._peak = 0.0  # rows that were not batch work's, at most, lately
        self._peak_at = 0.0
        self._decisions: Decisions = []

    def update(self, stats: EngineStats, now: float) -> None:
        self._load.update(stats, now)

    def offer(self, demand: Demand, now: float) -> Refusal | None:
        """A request has come. Where it is not refused, `poll` says when it goes, or that it is refused later."""
        if not (self._rules.load_shedding or demand.is_batch):
            self._arrive(demand, now)
            self._send(demand, now)
            self._decisions.append((demand, None))
            return None
        self._arrive(demand, now)
        refusal = self._predict_refusal(demand, now) or self._make_place(demand, now)
        if refusal is not None:
            self.queue.refuse(demand, now)
            return refusal
        self.queue.push(demand)
        return None

    def lateness(self, demand: Demand, now: float) -> Refusal | None:
        """Why a request that came now would be too late; None: it would not. It takes no place in the queue."""
        self._arrive(demand, now)
        return self._predict_refusal(demand, now)

    def poll(self, now: float) -> Decisions:
        """Decisions on waiting requests since the last call."""
        rows = self._load.rows - self._batch_rows
        self._peak = max(float(rows), self._peak * math.exp((self._peak_at - now) / PEAK_S))
        self._peak_at = now
        decisions, self._decisions = self._decisions, []
        if now - self._late_sought >= SEEK_LATE_S:
            self._late_sought = now
            decisions += self._refuse_late(now)
        while (demand := self.queue.first(now)) is not None:
            load, mix = self._situation(demand, now)
            if not self._can_go(demand, load, mix):
                break
            self.queue.remove(demand)
            if self._load.predictor is not None:
                first_token_s = self._load.predictor.first_token_s(demand, load, mix)
                demand.predicted_ttft_s = now - demand.arrival_s + first_token_s
            self._send(demand, now)
            decisions.append((demand, None))
        return decisions

    def withdraw(self, demand: Demand) -> None:
        self.queue.remove(demand)

    def ended(self, demand: Demand, now: float, *, prompt: int, cached: int, output: int, finished: bool) -> None:
        """Settle a request that went to the engine, by the tokens it had. `finished`: its answer is whole, and says
        what is usual."""
        self._batch_rows -= demand.sequences * demand.is_batch
        self.queue.settle(demand, self._traffic.cost(prompt - cached, output))
        demand.reservation.end(now)
        if finished:
            self._traffic.learn(demand.tenant, prompt, cached, output)

    def would_refuse(self, demand: Demand, now: float) -> bool:
        """Whether a request that came now would be refused. It takes no place in the queue."""
        return self.lateness(demand, now) is not None or len(self.queue) >= self._rules.max_queue

    def predicted_ttft_s(self, demand: Demand, now: float) -> float | None:
        """Seconds from arrival to first token of a request that came now, if it waited its turn; None: unknown. It
        takes no place in the queue."""
        self._arrive(demand, now)
        return None if self._load.predictor is None else self._ttft_s(demand, now, self._load.predictor)

    # Predicting ------------------------------------------------------------------------------------------------------

    def _predict_refusal(self, demand: Demand, now: float) -> Refusal | None:
        """Why a request that comes now would miss its first token's target; None where it would not."""
        predictor = self._load.predictor
        if predictor is None or not (demand.is_interactive and self._rules.load_shedding):
            return None
        target = self._ttft_limit_s(demand, predictor, WAIT_MARGIN)
        late_s = self._ttft_s(demand, now, predictor) - target
        if late_s <= 0:
            return None
        others = self.queue.others_ask(demand, now)
        by_itself = others and self._ttft_s(demand, now, predictor, own=False) <= target
        return Refusal(Reason.OVER_SHARE if by_itself else Reason.OVERLOADED, min(late_s, LONGEST_RETRY_S))

    def _ttft_limit_s(self, demand: Demand, predictor: Predictor, margin: float = MARGIN) -> float:
        return max(margin * self._rules.ttft_target_s, OUT_OF_REACH * predictor.alone_s(demand))

    def _situation(self, demand: Demand, now: float) -> tuple[Load, Mix]:
        mix = self._traffic.mix(demand.prompt_tokens)
        return self._load.ahead_of(demand.priority, now, mix), mix

    def _ttft_s(self, demand: Demand, now: float, predictor: Predictor, *, own: bool = True) -> float:
        """From the request's arrival to its first token, if it waits its turn. `own`: behind its own tenant's, too."""
        load, mix = self._situation(demand, now)
        waits_s = 0.0
        ahead = self.queue.ahead_of(demand, now, own=own)
        before = ahead.demands
        share = self.queue.share(demand, now)
        if before or ahead.unsent_cost or not self._has_place(demand, load, mix):
            row_s = predictor.row_s(max(1, load.rows), mix)
            waits_s = sum([predictor.service_s(each, row_s) for each in before])
            mine_s = sum([predictor.service_s(each, row_s) for each in before if each.tenant == demand.tenant])
            waits_s = max(waits_s, mine_s / (OVERTAKEN * share) if own else 0.0)
            waits_s += predictor.service_s(mix, row_s) * (0.5 + ahead.unsent_cost / max(1.0, mix.cost))
        return now - demand.arrival_s + waits_s + predictor.first_token_s(demand, load, mix)

    def _has_place(self, demand: Demand, load: Load, mix: Mix) -> bool:
        """Whether the engine can hold one request more, and no request misses the TPOT target because of it."""
        predictor = self._load.predictor
        if demand.is_batch and self._load.has_waiting:
            return False
        if predictor is None or load.rows == 0:
            return True
        share = BATCH_SHARE if demand.is_batch else 1.0
        taken = max(load.rows, self._batch_rows + math.ceil(self._peak)) if demand.is_batch else load.rows
        rows = taken + demand.sequences
        grown = demand.prompt_tokens + demand.output_tokens
        if rows > self._load.config.max_num_seqs * share or grown > load.free_kv_tokens:
            return False
        reachable = OUT_OF_REACH * predictor.decode_s(1, grown)
        target = max(MARGIN * self._rules.tpot_target_s, reachable)
        return predictor.tpot_s(rows, load.context * taken / load.rows + grown, mix) <= target * share

    def _can_go(self, demand: Demand, load: Load, mix: Mix) -> bool:
        """Whether a request whose turn it is goes now: few enough prompts wait inside the engine, too."""
        predictor = self._load.predictor
        if not self._has_place(demand, load, mix):
            return False
        if predictor is None or load.rows == 0:
            return True
        work_s = load.prefill_tokens * predictor.token_s(mix)
        wait_s = predictor.prefill_s(load.prefill_tokens, work_s, load.decoding, load.context)
        return wait_s <= PREFILL_WINDOW * self._rules.ttft_target_s

    # Deciding --------------------------------------------------------------------------------------------------------

    def _arrive(self, demand: Demand, now: float) -> None:
        demand.cost = self._traffic.cost(demand.prompt_tokens, demand.output_tokens)
        self.queue.arrive(demand, now)

    def _send(self, demand: Demand, now: float) -> None:
        self._batch_rows += demand.sequences * demand.is_batch
        self.queue.serve(demand)
        demand.reservation = self._load.reserve(int(demand.prompt_tokens), demand.sequences, demand.priority)
        demand.reservation.sent(now)

    def _refuse_late(self, now: float) -> Decisions:
        """Refuse those first of their tenants that have waited in vain."""
        decisions: Decisions = []
        while late := [(head, why) for head in self.queue.heads() if (why := self._lateness(head, now)) is not None]:
            for demand, _ in late:
                self.queue.remove(demand)
                self.queue.refuse(demand, now)
            decisions += late
        return decisions

    def _lateness(self, demand: Demand, now: float) -> Refusal | None:
        """Why a waiting request is hopeless; None where it is not."""
        waited = now - demand.arrival_s
        if not demand.is_interactive:
            over = self._rules.max_queue_s is not None and waited > self._rules.max_queue_s
            return Refusal(Reason.QUEUE_TIMEOUT, self._drain_s(demand, now)) if over else None
        predictor = self._load.predictor
        if predictor is None:
            return None
        late_s = waited + predictor.first_token_s(demand, *self._situation(demand, now))
        late_s -= self._ttft_limit_s(demand, predictor)
        return Refusal(Reason.OVERLOADED, max(late_s, self._drain_s(demand, now))) if late_s > 0 else None

    def _make_place(self, demand: Demand, now: float) -> Refusal | None:
        """Make a place in a full queue: refuse the last of a worse tier, or the newcomer where there is none."""
        if len(self.queue) < self._rules.max_queue:
            return None
        last = self.queue.last()
        if last is None and self._can_go(demand, *self._situation(demand, now)):
            return None  # it will not have to wait
        refusal = Refusal(Reason.QUEUE_FULL, self._drain_s(demand, now))
        if last is None or last.priority <= demand.priority:
            return refusal
        self.queue.remove(last)
        self.queue.refuse(last, now)
        self._decisions.append((last, refusal))
        return None

    def _drain_s(self, demand: Demand, now: float) -> float:
        """Until all that waits has gone to the engine."""
        predictor = self._load.predictor
        if predictor is None:
            return 1.0
        load, mix = self._situation(demand, now)
        each_s = predictor.service_s(mix, predictor.row_s(max(1, load.rows), mix))
        return min(LONGEST_RETRY_S, max(0.1, len(self.queue) * each_s))
