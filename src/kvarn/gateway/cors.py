"""Which web pages may read answers in a browser (CORS)."""

from __future__ import annotations

from collections.abc import Collection

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

_THIS_MACHINE = r"https?://(localhost|([a-z0-9-]+\.)+localhost|127(\.\d{1,3}){3}|\[::1\])(:\d+)?"
"""Origins that `check_host` takes for this machine's."""


def add_cors(app: FastAPI, origins: Collection[str] | None) -> None:
    """Answer preflight requests and mark answers for these origins; None: the pages that this machine serves.

    Outermost: browsers send preflight requests without the key.
    """
    app.add_middleware(
        CORSMiddleware,
        allow_origins=tuple(origins or ()),
        allow_origin_regex=_THIS_MACHINE if origins is None else None,
        allow_methods=("*",),
        allow_headers=("*",),
        expose_headers=("*",),
    )
