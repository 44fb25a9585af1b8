"""`/console/api/overview`: is the server healthy, how fast, how full, who uses it, what changed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from kvarn.catalog.models import ServedModel
from kvarn.gateway.console.router import console_router
from kvarn.gateway.console.server_state import SIGNS, ModelHealth, ServerState, server_state, state_begin
from kvarn.gateway.console.time_range import RangeQuery
from kvarn.gateway.console.viewer import ConsoleViewer, Viewer
from kvarn.gateway.dependencies import GatewayDep
from kvarn.gateway.state import Gateway
from kvarn.identity.scopes import sees_usage
from kvarn.metering.prices import BILLIONTHS
from kvarn.observe.history import HistoryPage, HistoryQuery, Mark
from kvarn.replica.client.protocol import ReplicaState
from kvarn.store.errors import StoreError
from kvarn.store.ledger import UsageFilter
from kvarn.store.models import AuditEntry
from kvarn.store.owner import Role
from kvarn.store.repositories.pages import Cursor
from kvarn.store.repositories.tenants.audit_log import list_audit_log
from kvarn.store.repositories.tenants.keys import labels_of_keys
from kvarn.store.repositories.tenants.projects import find_projects
from kvarn.store.repositories.tenants.users import names_of_users

router = console_router()

_MAX_USERS = 8
_MAX_CHANGES = 20
_REPORT_S = 2.0
"""Seconds that sums of the ledger may take: the page is shown without them then."""
_SINCE_S = 6 * 3600.0
"""Seconds within which the beginning of a trouble is looked for, by the minute."""
_SHOWN = ("requests_per_s", "errors_per_s", "refused_per_s", "ttft_p50_s", "ttft_p95_s", "tpot_p95_s", "goodput_ratio")
_FULL = ("kv_utilisation", "running", "waiting", "hit_ratio", "preemptions_per_s", "replicas_ready", "step_s")
_TOKENS = ("input_tokens_per_s", "cached_tokens_per_s", "output_tokens_per_s")

_log = logging.getLogger("kvarn.gateway")


class Tile(Struct, frozen=True):
    """A number of the range. `value`: null, nothing is known."""

    name: str
    label: str
    value: float | None
    unit: str
    """`1/s`, `s`, `ratio`, `tokens/s` or empty: a count."""
    link: str
    target: float | None = None
    """Latency target of the only model that is looked at."""


class ModelRow(Struct, frozen=True):
    """A model; its values are those of the last five minutes."""

    name: str
    state: str
    ready: bool
    ready_replicas: int
    replicas: int
    error: str | None
    drifted: list[str]
    requests_per_s: float | None
    ttft_p95_s: float | None
    tpot_p95_s: float | None
    goodput_ratio: float | None
    kv_utilisation: float | None
    waiting: float | None


class UserRow(Struct, frozen=True):
    """A project's use of models in the range, summed from the ledger."""

    project_id: str
    project: str
    organization_id: str | None
    organization: str
    requests: int
    input_tokens: int
    output_tokens: int
    cost: float
    currency: str


class Change(Struct, frozen=True):
    at: float
    kind: str
    """Kind of the audit entry, such as `deployment.scaled` or `api_key.created`, or `rollout.` and the decision."""
    object_id: str
    by: str
    text: str


class Overview(Struct, frozen=True):
    at: float
    """UNIX seconds of the answer."""
    state: ServerState
    tiles: list[Tile]
    history: HistoryPage
    models: list[ModelRow]
    users: list[UserRow] | None
    """The projects with the most tokens; null: the ledger does not answer now. Empty for keys that see no usage."""
    changes: list[Change]
    """Newest first; only administrators see them."""


@router.get("/overview")
async def get_overview(gateway: GatewayDep, viewer: ConsoleViewer, query: RangeQuery) -> Overview:
    """Load of the whole server, use and changes of what the viewer may see. Raises `ApiError`: 404, no such model."""
    model = None if query.model is None else viewer.find_model(gateway.models, query.model).name
    names = [*_SHOWN, *_FULL, *_TOKENS]
    history = await gateway.control.history.read(HistoryQuery(seconds=query.seconds, model=model or "", names=names))
    served = [each for each in gateway.models if model in (None, each.name) and viewer.may_use(each.name)]
    health = [_health(gateway, each, history) for each in served]
    recent = history.recent.get(model or "", {})
    database, sees_alerts = str(gateway.store.health.state), viewer.is_platform_admin
    state = server_state(health, database, recent, history.whole, sees_alerts=sees_alerts)
    state = await _with_beginning(gateway, state)
    now = gateway.store.now()
    users, changes = await asyncio.gather(
        _users(gateway, viewer, now - query.seconds, now, model), _changes(gateway, viewer, now - query.seconds)
    )
    return Overview(
        at=now,
        state=state,
        tiles=_tiles(history, health),
        history=_with_marks(viewer.of_history(history), changes),
        models=[_row(each) for each in health],
        users=users,
        changes=changes,
    )


async def _with_beginning(gateway: Gateway, state: ServerState) -> ServerState:
    """The state with the time since when it has been so, as far as the history tells."""
    sign = SIGNS.get(state.sign)
    if sign is None:
        return state
    asked = HistoryQuery(seconds=_SINCE_S, model=state.model, names=[sign.series])
    page = await gateway.control.history.read(asked)
    return replace(state, since=state_begin(page.at, page.series[sign.series], sign.is_well))


def _health(gateway: Gateway, model: ServedModel, history: HistoryPage) -> ModelHealth:
    monitor, target = gateway.control.monitor, gateway.config.slo_of(model.config)
    drifted = [] if monitor is None else [name for name, each in monitor.drifted.items() if each.model == model.name]
    replicas = list(model.replicas.values())
    return ModelHealth(
        name=model.name,
        ready=model.ready,
        state=model.state_text if replicas else "no replicas",
        ready_replicas=sum(each.state is ReplicaState.READY for each in replicas),
        replicas=len(replicas),
        error=model.load_error,
        drifted=drifted,
        ttft_target_s=target.ttft_target_s,
        tpot_target_s=target.tpot_target_s,
        recent=history.recent.get(model.name, {}),
    )


def _row(model: ModelHealth) -> ModelRow:
    return ModelRow(
        name=model.name,
        state=model.state,
        ready=model.ready,
        ready_replicas=model.ready_replicas,
        replicas=model.replicas,
        error=model.error,
        drifted=list(model.drifted),
        requests_per_s=model.recent.get("requests_per_s"),
        ttft_p95_s=model.recent.get("ttft_p95_s"),
        tpot_p95_s=model.recent.get("tpot_p95_s"),
        goodput_ratio=model.recent.get("goodput_ratio"),
        kv_utilisation=model.recent.get("kv_utilisation"),
        waiting=model.recent.get("waiting"),
    )


def _tiles(history: HistoryPage, models: Sequence[ModelHealth]) -> list[Tile]:
    whole, only = history.whole.get, models[0] if len(models) == 1 else None
    ttft_target_s, tpot_target_s = (None, None) if only is None else (only.ttft_target_s, only.tpot_target_s)
    slowest = "requests?order=slowest"
    return [
        Tile("requests", "Requests", whole("requests"), "", "requests"),
        Tile("requests_per_s", "Request rate", whole("requests_per_s"), "1/s", "requests"),
        Tile("error_ratio", "Failed", whole("error_ratio"), "ratio", "requests?outcome=failed"),
        Tile("refused_ratio", "Refused", whole("refused_ratio"), "ratio", "requests?outcome=refused"),
        Tile("ttft_p95_s", "TTFT p95", whole("ttft_p95_s"), "s", slowest, ttft_target_s),
        Tile("tpot_p95_s", "TPOT p95", whole("tpot_p95_s"), "s", slowest, tpot_target_s),
        Tile("goodput_ratio", "Goodput", whole("goodput_ratio"), "ratio", slowest),
        Tile("kv_utilisation", "KV cache", whole("kv_utilisation"), "ratio", "live"),
        Tile("hit_ratio", "Prefix hits", whole("hit_ratio"), "ratio", "live"),
        Tile("output_tokens_per_s", "Output", whole("output_tokens_per_s"), "tokens/s", "usage"),
    ]


async def _users(gateway: Gateway, viewer: Viewer, start: float, end: float, model: str | None) -> list[UserRow] | None:
    if not sees_usage(viewer.principal):
        return []
    where = UsageFilter(
        organization_id=viewer.organization_id,
        project_ids=None if viewer.project_id is None else (viewer.project_id,),
        models=None if model is None else (model,),
    )
    tenant, reports = viewer.principal.organization_id, gateway.control.reports
    try:
        async with asyncio.timeout(_REPORT_S):
            sums = await reports.sums(
                tenant, where, start=int(start), end=int(end) + 1, width=0, group_by=("project_id",)
            )
            sums.sort(key=lambda each: each.input_tokens + each.output_tokens, reverse=True)
            used = {each.group["project_id"] or "": each for each in sums[:_MAX_USERS]}
            async with gateway.store.reading() as session:
                projects = {each.id: each for each in await find_projects(session, list(used))}
            names = await viewer.names_of({each.organization_id for each in projects.values()})
    except (StoreError, TimeoutError) as error:
        _log.warning("the console's overview is without usage: %s", error or "the ledger is slow")
        return None
    rows = []
    for project_id, each in used.items():
        project = projects.get(project_id)
        rows.append(
            UserRow(
                project_id=project_id,
                project=project_id if project is None else project.name,
                organization_id=None if project is None else project.organization_id,
                organization="" if project is None else names[project.organization_id],
                requests=each.requests,
                input_tokens=each.input_tokens,
                output_tokens=each.output_tokens,
                cost=each.cost / BILLIONTHS,
                currency=each.currency,
            )
        )
    return rows


async def _changes(gateway: Gateway, viewer: Viewer, since: float) -> list[Change]:
    """Changes by administrators, and decisions of rollouts, which are the platform's."""
    if viewer.principal.role is not Role.ADMIN:
        return []
    own = viewer.principal.organization_id
    changes: list[Change] = []
    try:
        async with gateway.store.reading() as session:
            page = await list_audit_log(session, own, Cursor(limit=2 * _MAX_CHANGES), times={"gte": int(since)})
        entries = [entry for entry in page.items if not entry.type.startswith(("login.", "logout."))]
        names = await _names(gateway, viewer, entries)
    except StoreError as error:
        _log.warning("the console's overview is without the audit log: %s", error)
    else:
        for entry in entries:
            by = entry.actor if entry.actor_organization_id in (None, own) else "the platform"
            text = f"{_words(entry.type)}: {_name_of(entry, names)}"
            changes.append(Change(float(entry.effective_at), entry.type, entry.object_id, by, text))
    for rollout in gateway.control.rollouts.rollouts.values() if viewer.is_platform_admin else ():
        for each in rollout.log:
            if each.at >= since and not each.by:  # commands are in the audit log
                text = f"rollout of {rollout.model}: {each.action} ({each.reason})"
                changes.append(Change(each.at, f"rollout.{each.action}", rollout.model, "the rollout", text))
    return sorted(changes, key=lambda each: each.at, reverse=True)[:_MAX_CHANGES]


async def _names(gateway: Gateway, viewer: Viewer, entries: Sequence[AuditEntry]) -> dict[str, str]:
    """Names of what entries tell only ids of: organisations, projects, keys and users."""
    ids = {each for entry in entries for each in (entry.object_id, entry.project_id, _told(entry, "holder")) if each}
    async with gateway.store.reading() as session:
        names = {each.id: each.name for each in await find_projects(session, ids)}
        names |= {each: name for each, (name, _) in (await labels_of_keys(session, ids)).items()}
        names |= await names_of_users(session, ids)
    return names | await viewer.names_of({each for each in ids if each.startswith("org-")})


def _name_of(entry: AuditEntry, names: Mapping[str, str]) -> str:
    """Name of what was changed, where it is known, else its id; of limits and budgets, of whose they are."""
    if name := _told(entry, "name") or _told(entry, "email"):
        return name
    holder = _told(entry, "holder")
    if holder:
        model = _told(entry, "model")
        return f"{names.get(holder, holder)}, {'each model' if model == '*' else model}"
    if entry.type.startswith("budget."):
        return names.get(entry.project_id or "", entry.project_id or "the organisation")
    return names.get(entry.object_id, entry.object_id)


def _told(entry: AuditEntry, name: str) -> str:
    """A text among the details of an entry; empty where it is not told."""
    for details in (entry.detail, entry.detail.get("data"), entry.detail.get("changes_requested")):
        if isinstance(details, dict) and (value := details.get(name)):
            return str(value)
    return ""


def _words(kind: str) -> str:
    """`deployment.rolled_back` as `deployment rolled back`, `api_key.created` as `API key created`."""
    return kind.replace(".", " ").replace("_", " ").replace("api key", "API key")


def _with_marks(history: HistoryPage, changes: Sequence[Change]) -> HistoryPage:
    """The page with the changes of what is served marked, too; what is recent stands in the rows of models."""
    served = [each for each in changes if each.kind.startswith(("deployment.", "rollout."))]
    marks = [*history.marks, *(Mark(at=each.at, kind=each.kind, model=each.object_id) for each in served)]
    return replace(history, marks=sorted(marks, key=lambda mark: mark.at), recent={})
