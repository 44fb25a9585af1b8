"""What routes need, made once and hung on the application."""

from __future__ import annotations

from dataclasses import dataclass

from kvarn.fleet.autoscale.loop import Autoscaling
from kvarn.fleet.controller import FleetController
from kvarn.fleet.shared_counts import SharedState
from kvarn.gateway.body import BodyReader
from kvarn.identity.key_cache import KeyCache
from kvarn.metering.usage_reports import Reports
from kvarn.quality.golden_models import GoldenModels
from kvarn.quality.monitor import QualityMonitor
from kvarn.responses.background_runs import ResponsesContext


@dataclass(frozen=True, slots=True)
class Gateway(ResponsesContext):
    """Everything of one gateway that outlives a request."""

    key_cache: KeyCache
    bodies: BodyReader
    reports: Reports
    fleet: FleetController | None
    """Who makes deployments so; None: another process does."""
    autoscaling: Autoscaling | None
    """Who decides how many replicas models have; None: another process does."""
    shared: SharedState | None
    """What is counted together with other gateway processes of this server; None: there are none."""
    watch: QualityMonitor | None
    """Finds replicas that answer wrongly; None in processes that do not look for any."""
    golden: GoldenModels
    """What it watches."""
