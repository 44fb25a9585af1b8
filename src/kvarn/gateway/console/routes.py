"""The routers of the console, in order: its data first, then its files, which answer every other path below it."""

from __future__ import annotations

from kvarn.gateway.console import assets
from kvarn.gateway.console.api import (
    live,
    oidc,
    overview,
    requests,
    series,
    session,
)

CONSOLE_ROUTERS = [
    live.router,
    oidc.router,
    requests.router,
    overview.router,
    series.router,
    session.router,
    assets.router,
]
