"""The routers of the console, in order: its data first, then its files, which answer every other path below it."""

from __future__ import annotations

from kvarn.gateway.console import assets
from kvarn.gateway.console.api import overview, series, session

CONSOLE_ROUTERS = [module.router for module in (session, overview, series, assets)]
