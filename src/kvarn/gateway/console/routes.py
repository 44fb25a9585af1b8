"""The routers of the console, in order: its data first, then its files, which answer every other path below it."""

from __future__ import annotations

from kvarn.gateway.console import assets
from kvarn.gateway.console.api import (
    alerts,
    live,
    oidc,
    overview,
    requests,
    series,
    session,
)

CONSOLE_ROUTERS = [
    alerts.router,
    live.router,
    oidc.router,
    requests.router,
    overview.router,
    series.router,
    session.router,
    assets.router,
]
