"""Addresses of services, as they may be shown."""

from __future__ import annotations

import re


def without_password(url: str) -> str:
    """The address without its password, also where characters in that should have been encoded."""
    shown = re.sub(r"(://[^:@/]*):.*@", r"\1:[password]@", url)
    return re.sub(r"(password=)[^&]*", r"\1[password]", shown)
