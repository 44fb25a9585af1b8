from __future__ import annotations

from key_server import api, open_api  # noqa: F401
