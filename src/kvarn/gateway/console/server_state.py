"""The sentence that says how the server is, from what is known of its models; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import quote

from msgspec import Struct

from kvarn.observe.samples import REASONS

MIN_REQUESTS = 20
"""Requests of five minutes from which on their latency says something."""
LEAST_GOODPUT = 0.85
MOST_ERRORS = 0.05
FULL_CACHE = 0.95

_WAITS = {
    "step": "wait for the step in flight",
    "slot": "wait for a slot",
    "budget": "wait for tokens of a step",
    "latency": "wait so that running ones keep their targets",
    "blocks": "wait for KV blocks",
    "adapter": "wait for an adapter",
    "fetch": "wait for blocks from a tier",
    "mask": "wait for a grammar",
    "preempted": "were preempted and wait to run again",
}


class ServerState(Struct, frozen=True):
    level: str
    """`good`, `warn` or `bad`."""
    sentence: str
    link: str
    """Path below `/console/` to the evidence; empty: the viewer may see none."""
    model: str = ""
    """The model that it is about; empty: all."""
    sign: str = ""
    """Key of `SIGNS`, which tells how long it has been so; empty: nothing does."""
    since: float | None = None
    """UNIX seconds since when it has been so; null: it is not known."""


class Sign(NamedTuple):
    """A series of the history, and the values of it that are no trouble."""

    series: str
    is_well: Callable[[float], bool]


SIGNS = {
    "down": Sign("replicas_ready", lambda ready: ready >= 1),
    "failing": Sign("error_ratio", lambda share: share <= MOST_ERRORS),
    "slow": Sign("goodput_ratio", lambda share: share >= LEAST_GOODPUT),
    "full": Sign("kv_utilisation", lambda share: share <= FULL_CACHE),
}
_WELL_FOR = 2
"""Intervals in a row that were well before a trouble began: one between two bad ones is of the same trouble."""


def state_begin(at: Sequence[float], values: Sequence[float | None], is_well: Callable[[float], bool]) -> float | None:
    """UNIX seconds since when something has not been well, by a series whose intervals end `at`; those of which nothing
    is known are of what was before them. None: it was never otherwise in this time, or is well now."""
    first, well = None, 0
    for place in range(len(at) - 1, -1, -1):
        value = values[place]
        if value is None:
            continue
        if not is_well(value):
            first, well = place, 0
            continue
        well += 1
        if well == _WELL_FOR:
            break
    if first is None or not well:
        return None
    return at[first - 1] if first else at[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelHealth:
    """Health of a model. `recent`: its values of the last minutes, as `HistoryPage.recent` has them."""

    name: str
    ready: bool
    state: str
    ready_replicas: int
    replicas: int
    error: str | None = None
    drifted: Sequence[str] = ()
    ttft_target_s: float
    tpot_target_s: float
    recent: Mapping[str, float | None] = field(default_factory=dict)

    def get(self, name: str) -> float:
        """A value; 0 where nothing is known."""
        return self.recent.get(name) or 0.0


def server_state(
    models: Sequence[ModelHealth],
    database: str,
    recent: Mapping[str, float | None],
    whole: Mapping[str, float | None],
    *,
    sees_alerts: bool,
) -> ServerState:
    """The most important thing to say: what is broken, what is slow, what fills up; else that all is well.

    Args:
        models: Those that are looked at.
        database: `up`, `read_only` or `away`.
        recent: Values of all of them in the last minutes.
        whole: The same over the range that is looked at.
        sees_alerts: Whether the viewer may open the page of alerts.
    """
    if database != "up":
        what = "does not answer" if database == "away" else "takes no writes"
        text = f"The database {what}: requests are answered, but keys, limits and usage are not up to date."
        return ServerState("bad", text, "alerts" if sees_alerts else "")
    for find in (_broken, _failing, _slow, _full, _fewer):
        if found := next(filter(None, map(find, models)), None):
            return found
    if not models:
        return ServerState("warn", "No model is served.", "models")
    return _well(recent, whole)


def _broken(model: ModelHealth) -> ServerState | None:
    if model.error is not None:
        return _about(model, "bad", f"{model.name} cannot answer: {model.error}.", "models")
    if model.drifted:
        text = f"{model.drifted[0]} answers golden prompts of {model.name} wrongly."
        return _about(model, "bad", text, "models")
    if model.replicas and not model.ready:
        level = "warn" if model.state.startswith("starting") else "bad"
        return _about(model, level, f"{model.name} takes no requests: {model.state}.", "models", sign="down")
    return None


def _failing(model: ModelHealth) -> ServerState | None:
    share = model.get("error_ratio")
    if model.get("requests") < MIN_REQUESTS or share <= MOST_ERRORS:
        return None
    text = f"{percent(share)} of the requests to {model.name} fail."
    return _about(model, "bad", text, "requests", "status=5xx", sign="failing")


def _slow(model: ModelHealth) -> ServerState | None:
    goodput = model.recent.get("goodput_ratio")
    if goodput is None or goodput >= LEAST_GOODPUT or model.get("judged_requests") < MIN_REQUESTS:
        return None
    missed = f"{percent(1 - goodput)} of the requests to {model.name} miss their latency targets"
    ttft, tpot = model.get("ttft_p95_s"), model.get("tpot_p95_s")
    if ttft > model.ttft_target_s or tpot <= model.tpot_target_s:
        measured = f"TTFT p95 {seconds(ttft)}, target {seconds(model.ttft_target_s)}"
    else:
        measured = f"TPOT p95 {seconds(tpot)}, target {seconds(model.tpot_target_s)}"
    reason = max(REASONS, key=lambda each: model.get(f"waiting_{each}"))
    waits = f"; most {_WAITS[reason]}" if model.get(f"waiting_{reason}") >= 1 else ""
    return _about(model, "bad", f"Slow: {missed} ({measured}){waits}.", "requests", "order=slowest", sign="slow")


def _full(model: ModelHealth) -> ServerState | None:
    use = model.get("kv_utilisation")
    if use <= FULL_CACHE:
        return None
    text = f"The KV cache of {model.name} is full ({percent(use)}): requests wait or are preempted."
    return _about(model, "warn", text, "live", sign="full")


def _fewer(model: ModelHealth) -> ServerState | None:
    if model.ready_replicas >= model.replicas:
        return None
    text = f"{model.ready_replicas} of {model.replicas} replicas of {model.name} take requests."
    return _about(model, "warn", text, "models")


def _well(recent: Mapping[str, float | None], whole: Mapping[str, float | None]) -> ServerState:
    if not whole.get("requests"):
        return ServerState("good", "All well, and idle: no requests in this time.", "playground")
    parts = [f"{60 * (recent.get('requests_per_s') or 0.0):,.0f} requests/min"]
    shown: Iterable[tuple[str, str, Callable[[float], str]]] = (
        ("TTFT p95", "ttft_p95_s", seconds),
        ("KV", "kv_utilisation", percent),
    )
    for label, name, form in shown:
        value = recent.get(name)
        if value is not None:
            parts.append(f"{label} {form(value)}")
    return ServerState("good", f"All well: {', '.join(parts)}.", "requests")


def _about(model: ModelHealth, level: str, sentence: str, page: str, *query: str, sign: str = "") -> ServerState:
    return ServerState(level, sentence, f"{page}?{'&'.join((f'model={quote(model.name)}', *query))}", model.name, sign)


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def seconds(value: float) -> str:
    """With two digits that count: `0.31 s`, `12 s`, `45 ms`."""
    if value < 0.1:
        return f"{1000 * value:.0f} ms"
    return f"{value:.2f} s" if value < 10 else f"{value:.0f} s"
