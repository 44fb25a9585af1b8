"""The console's built files."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from kvarn.gateway.console.paths import API, CONSOLE
from kvarn.gateway.static_files import ASK_AGAIN, FOR_EVER, Asset, Assets, file_response, path_below, redirect
from kvarn.wire.openai.errors import ApiError

router = APIRouter(include_in_schema=False)

_HASHED = "assets/"
"""Folder of files whose names change with their contents."""
_INDEX = "index.html"
_HEAD = re.compile(rb"<head[^>]*>", re.IGNORECASE)


@cache
def built_assets() -> Assets:
    return Assets.read(files("kvarn.gateway.console").joinpath("static"))


AssetsDep = Annotated[Assets, Depends(built_assets)]


@router.get(CONSOLE)
@router.get(CONSOLE + "/{path:path}")
async def console_file(request: Request, assets: AssetsDep, path: str = "") -> Response:
    """A built file; for every other path the page, which finds its view by the path itself."""
    if f"{CONSOLE}/{path}/".startswith(f"{API}/"):
        raise HTTPException(404)
    below = path_below(request, CONSOLE)
    if below is None:
        return redirect(request, f"{CONSOLE.removeprefix('/')}/")
    if path != _INDEX and (asset := assets.by_path.get(path)) is not None:
        return file_response(request, asset, FOR_EVER if path.startswith(_HASHED) else ASK_AGAIN)
    if path.startswith(_HASHED):
        why = "This file of the console is not there (any more): load the page again."
        raise ApiError(404, why, code="unknown_asset", headers={"cache-control": "no-store"})
    index = assets.by_path.get(_INDEX)
    if index is None:
        why = "The console's files are not in this installation: `make console` builds them, where npm is."
        raise ApiError(404, why, code="console_not_built")
    return file_response(request, _with_base(index, below.count(b"/")), ASK_AGAIN)


def _with_base(index: Asset, depth: int) -> Asset:
    """The page, with the console's root as the base of its relative addresses."""
    base = f'<base href="{"../" * depth or "./"}">'.encode()
    return Asset(_HEAD.sub(lambda head: head.group() + base, index.content, count=1), index.media_type)
