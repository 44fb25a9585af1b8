"""Built files of the package, such as the console's: read once, kept in memory, and served from there."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources.abc import Traversable
from urllib.parse import quote

from fastapi import Request
from starlette.responses import Response

from kvarn.gateway.record import ASKED_PATH

_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "json": "application/json",
    "png": "image/png",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
    "webp": "image/webp",
    "xml": "application/xml",
}
FOR_EVER = {"cache-control": "public, max-age=31536000, immutable"}
ASK_AGAIN = {"cache-control": "no-cache"}
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
_PACKED = ".gz"


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
        """Every file; none where there is no folder. A file may lie there compressed, plain, or as both."""
        contents = dict(_walk(folder)) if folder.is_dir() else {}
        packed = {path.removesuffix(_PACKED): content for path, content in contents.items() if path.endswith(_PACKED)}
        plain = {path: content for path, content in contents.items() if not path.endswith(_PACKED)}
        plain |= {path: gzip.decompress(content) for path, content in packed.items() if path not in plain}
        return cls({path: Asset(content, _media_type(path), packed.get(path)) for path, content in plain.items()})


def _walk(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, f"{prefix}{entry.name}/")
        else:
            yield prefix + entry.name, entry.read_bytes()


def _media_type(path: str) -> str:
    return _TYPES.get(path.rpartition(".")[2], "application/octet-stream")


def path_below(request: Request, root: str) -> bytes | None:
    """The path after `root` and a slash as the browser knows it, which resolves relative addresses by it; None: it
    asked for `root` itself."""
    asked: bytes = request.scope.get(ASKED_PATH, request.scope["raw_path"])
    asked = asked.removeprefix(request.scope.get("root_path", "").encode())
    _, slash, below = asked.partition(root.encode() + b"/")
    return below if slash else None


def redirect(request: Request, relative: str) -> Response:
    """A redirect to an address relative to the one asked for: right behind a proxy that adds or removes a prefix, too.
    The query is kept."""
    query = quote(request.scope["query_string"], safe=_QUERY_CHARACTERS)
    location = relative + (f"?{query}" if query else "")
    return Response(status_code=307, headers={"location": location, **ASK_AGAIN})


def file_response(request: Request, asset: Asset, headers: Mapping[str, str]) -> Response:
    """The file with these headers, compressed where that is taken; 304 where the browser has it."""
    own = {**SECURITY_HEADERS, **headers}
    content = asset.content
    if asset.compressed is not None:
        own["vary"] = "accept-encoding"
        if _takes_gzip(request.headers.get("accept-encoding", "")):
            content = asset.compressed
            own["content-encoding"] = "gzip"
    own["etag"] = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    if _has(request.headers.get("if-none-match", ""), own["etag"]):
        return Response(status_code=304, headers=own)
    return Response(content, media_type=asset.media_type, headers=own)


def _takes_gzip(accepted: str) -> bool:
    for each in accepted.lower().split(","):
        coding, _, weight = each.partition(";")
        if coding.strip() in ("gzip", "*"):
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def _has(if_none_match: str, etag: str) -> bool:
    tags = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return etag in tags or "*" in tags
