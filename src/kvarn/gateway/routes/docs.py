"""`/docs`: the operations of this server, on a page that needs nothing from the internet."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from fastapi import APIRouter
from starlette.responses import HTMLResponse

router = APIRouter(include_in_schema=False)


@router.get("/docs")
async def docs() -> HTMLResponse:
    """Serve the page; it reads `/openapi.json` in the browser."""
    return HTMLResponse(_page(), headers={"content-security-policy": _POLICY})


_POLICY = "default-src 'none'; connect-src 'self'; script-src 'unsafe-inline'; style-src 'unsafe-inline'"


@cache
def _page() -> str:
    return files("kvarn.gateway").joinpath("docs.html").read_text(encoding="utf-8")
