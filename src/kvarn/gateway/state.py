"""The state of the application, made once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvarn.answers.traces import Traces
from kvarn.external.model import ExternalModel
from kvarn.fleet.autoscale.loop import Autoscaling
from kvarn.fleet.controller import FleetController
from kvarn.fleet.shared_counts import SharedState
from kvarn.gateway.alerting import Alerting
from kvarn.gateway.planning import PlanningPool
from kvarn.gateway.what_if import WhatIfRuns
from kvarn.identity.key_cache import KeyCache
from kvarn.identity.oidc.sign_in import OidcSignIn
from kvarn.identity.sessions import Sessions
from kvarn.metering.usage_reports import Reports
from kvarn.observe.history import HistorySource
from kvarn.quality.golden_models import GoldenModels
from kvarn.quality.monitor import QualityMonitor
from kvarn.responses.background_runs import ResponsesContext
from kvarn.retrieval.stores import Retrieval
from kvarn.rollouts.controller import Rollouts
from kvarn.rollouts.shadow import Shadows
from kvarn.tools.administration import ToolServerAdministration
from kvarn.tools.code_interpreter.containers import Containers


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """Deployments, replicas, rollouts and what administrators ask for."""

    key_cache: KeyCache
    sessions: Sessions  # of the console
    oidc: OidcSignIn | None  # where people sign in to it; None: with keys only
    reports: Reports
    fleet: FleetController | None  # makes the deployments real; None: another process does
    autoscaling: Autoscaling | None  # decides how many replicas models have; None: another process does
    shared: SharedState | None  # counts kept together with other gateway processes of this server; None: there are none
    monitor: QualityMonitor | None  # finds replicas that answer wrongly; None in processes that do not look for any
    golden: GoldenModels  # the prompts and models that it compares
    shadows: Shadows
    rollouts: Rollouts
    external: Sequence[ExternalModel]  # models that other servers run
    traces: Traces
    alerting: Alerting
    tool_servers: ToolServerAdministration
    history: HistorySource
    planning: PlanningPool
    what_if: WhatIfRuns


@dataclass(frozen=True, slots=True)
class Gateway(ResponsesContext):
    control: ControlPlane
    retrieval: Retrieval
    containers: Containers  # of the code interpreter
