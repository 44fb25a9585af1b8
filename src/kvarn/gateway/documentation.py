"""`/docs/`: the documentation, where `make site` has built it into the package. `/docs/api`: the operations of this
server to try out, on a page that is always there."""

from __future__ import annotations

import asyncio
import hashlib
import re
from base64 import b64encode
from functools import cache
from importlib.resources import files
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from kvarn.gateway.static_files import ASK_AGAIN, SECURITY_HEADERS, Asset, Assets, file_response, path_below, redirect
from kvarn.wire.openai.errors import ApiError

DOCS = "/docs"
_OPERATIONS = "api"
_INDEX = "index.html"
_INLINE_SCRIPT = re.compile(rb"<script>(.*?)</script>", re.DOTALL)

router = APIRouter(include_in_schema=False)


def is_documentation(path: str) -> bool:
    """Whether a path is the documentation's: it needs no key, and is no request to a model."""
    return path in (DOCS, "/redoc") or path.startswith(f"{DOCS}/")


@cache
def _read_site() -> Assets:
    return Assets.read(files("kvarn.gateway").joinpath("site"))


async def built_site() -> Assets:
    """The built site; empty where there is none."""
    return await asyncio.to_thread(_read_site)


SiteDep = Annotated[Assets, Depends(built_site)]


@cache
def _operations_page() -> Asset:
    return Asset(files("kvarn.gateway").joinpath("docs.html").read_bytes(), "text/html; charset=utf-8")


@router.get("/redoc")
async def redirect_to_operations(request: Request) -> Response:
    """The operations, by FastAPI's other name for them."""
    return redirect(request, f"{DOCS.removeprefix('/')}/{_OPERATIONS}")


@router.get(f"{DOCS}/{_OPERATIONS}")
async def operations(request: Request) -> Response:
    """The operations of this server, on a page that needs nothing from the internet; it reads `/openapi.json`."""
    return _response(request, _operations_page())


@router.get(DOCS)
@router.get(DOCS + "/{path:path}")
async def documentation(request: Request, site: SiteDep, path: str = "") -> Response:
    """A file of the site, or a folder's page. Without a site, its root leads to the operations."""
    below = path_below(request, DOCS)
    has_site = _INDEX in site.by_path
    if below is None:
        return redirect(request, f"{DOCS.removeprefix('/')}/" + ("" if has_site else _OPERATIONS))
    if not path and not has_site:
        return redirect(request, _OPERATIONS)
    page = site.by_path.get(f"{path}/{_INDEX}".removeprefix("/"))
    if page is not None and below and not below.endswith(b"/"):
        return redirect(request, f"{path.rpartition('/')[2]}/")
    asset = page or site.by_path.get(path)
    if asset is None and not has_site:
        why = "The documentation is not in this installation: `make site` builds it. /docs/api lists the operations."
        raise ApiError(404, why, code="documentation_not_built")
    if asset is None:
        raise HTTPException(404)
    return _response(request, asset)


def _response(request: Request, asset: Asset) -> Response:
    return file_response(request, asset, ASK_AGAIN | {"content-security-policy": _policy(asset)})


def _policy(asset: Asset) -> str:
    """The console's policy, and the scripts that stand in this page itself. Cells of tables have their alignment as a
    style."""
    hashes = (hashlib.sha256(script).digest() for script in _INLINE_SCRIPT.findall(asset.content))
    scripts = "".join(sorted({f" 'sha256-{b64encode(digest).decode()}'" for digest in hashes}))
    own = f"; script-src 'self'{scripts}; style-src 'self' 'unsafe-inline'"
    return SECURITY_HEADERS["content-security-policy"] + own
