"""The console's built files: read from the package once, kept in memory, and served from there."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Depends, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from kvarn.gateway.console.paths import API, CONSOLE
from kvarn.gateway.record import ASKED_PATH
from kvarn.wire.openai.errors import ApiError

router = APIRouter(include_in_schema=False)

_HASHED = "assets/"
"""Folder of files whose names change with their contents."""
_INDEX = "index.html"
_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "json": "application/json",
    "png": "image/png",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
_FOR_EVER = {"cache-control": "public, max-age=31536000, immutable"}
_ASK_AGAIN = {"cache-control": "no-cache"}
SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'self'; img-src 'self' data:; connect-src 'self'; object-src 'none'; base-uri 'self'; "
        "form-action 'self'; frame-ancestors 'none'"
    ),
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
_QUERY_CHARACTERS = "!$%&'()*+,-./:;=?@_~"
_HEAD = re.compile(rb"<head[^>]*>", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Asset:
    """A file in memory, and compressed where it was built so."""

    content: bytes
    media_type: str
    compressed: bytes | None = None


@dataclass(frozen=True, slots=True)
class Assets:
    """All files below one folder, by path."""

    by_path: Mapping[str, Asset] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Traversable) -> Assets:
        contents = dict(_walk(folder)) if folder.is_dir() else {}
        return cls(
            {
                path: Asset(content, _media_type(path), contents.get(f"{path}.gz"))
                for path, content in contents.items()
                if not path.endswith(".gz")
            }
        )


def _walk(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, f"{prefix}{entry.name}/")
        else:
            yield prefix + entry.name, entry.read_bytes()


def _media_type(path: str) -> str:
    return _TYPES.get(path.rpartition(".")[2], "application/octet-stream")


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
    below = _path_below_console(request)
    if below is None:
        return Response(status_code=307, headers={"location": _with_slash(request), **_ASK_AGAIN})
    if path != _INDEX and (asset := assets.by_path.get(path)) is not None:
        return _answer(request, asset, _FOR_EVER if path.startswith(_HASHED) else _ASK_AGAIN)
    if path.startswith(_HASHED):
        why = "This file of the console is not there (any more): load the page again."
        raise ApiError(404, why, code="unknown_asset", headers={"cache-control": "no-store"})
    index = assets.by_path.get(_INDEX)
    if index is None:
        why = "The console's files are not in this installation: `make console` builds them, where npm is."
        raise ApiError(404, why, code="console_not_built")
    return _answer(request, _with_base(index, below.count(b"/")), _ASK_AGAIN)


def _path_below_console(request: Request) -> bytes | None:
    """The path after `/console/` as the browser knows it, which resolves relative addresses by it; None: it asked for
    `/console`."""
    asked: bytes = request.scope.get(ASKED_PATH, request.scope["raw_path"])
    asked = asked.removeprefix(request.scope.get("root_path", "").encode())
    _, slash, below = asked.partition(CONSOLE.encode() + b"/")
    return below if slash else None


def _with_slash(request: Request) -> str:
    """The page's address, relative to `/console`: right behind a proxy that adds or removes a prefix, too."""
    query = quote(request.scope["query_string"], safe=_QUERY_CHARACTERS)
    return f"{CONSOLE.removeprefix('/')}/" + (f"?{query}" if query else "")


def _with_base(index: Asset, depth: int) -> Asset:
    """The page, with the console's root as the base of its relative addresses."""
    base = f'<base href="{"../" * depth or "./"}">'.encode()
    return Asset(_HEAD.sub(lambda head: head.group() + base, index.content, count=1), index.media_type)


def _answer(request: Request, asset: Asset, caching: Mapping[str, str]) -> Response:
    headers = {**SECURITY_HEADERS, **caching}
    content = asset.content
    if asset.compressed is not None:
        headers["vary"] = "accept-encoding"
        if _takes_gzip(request.headers.get("accept-encoding", "")):
            content = asset.compressed
            headers["content-encoding"] = "gzip"
    headers["etag"] = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    if _has(request.headers.get("if-none-match", ""), headers["etag"]):
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=asset.media_type, headers=headers)


def _takes_gzip(accepted: str) -> bool:
    for each in accepted.lower().split(","):
        coding, _, weight = each.partition(";")
        if coding.strip() in ("gzip", "*"):
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def _has(if_none_match: str, etag: str) -> bool:
    tags = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return etag in tags or "*" in tags
