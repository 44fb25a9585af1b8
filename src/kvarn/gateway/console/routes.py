"""The routers of the console, in order: its data first, then its files, which answer every other path below it."""

from __future__ import annotations

from kvarn.gateway.console import assets
from kvarn.gateway.console.api import (
    alerts,
    conversations,
    live,
    models,
    oidc,
    overview,
    plan,
    quality,
    requests,
    review,
    series,
    session,
    tools,
    usage,
    what_if,
)

CONSOLE_ROUTERS = [
    alerts.router,
    conversations.router,
    live.router,
    models.router,
    oidc.router,
    overview.router,
    plan.router,
    quality.router,
    requests.router,
    review.router,
    series.router,
    session.router,
    tools.router,
    usage.router,
    what_if.router,
    assets.router,
]
