"""Who a request acts for."""

from __future__ import annotations

from typing import Protocol

from starlette.types import Scope

from kvarn.store.owner import ANYBODY, Principal


class Authenticator(Protocol):
    """Finds the principal of a request."""

    async def principal(self, scope: Scope) -> Principal:
        """Who the request with this ASGI scope acts for.

        Raises:
            ApiError: 401, the request carries no key or one that is not valid.
        """
        ...


class OpenDoor:
    """Lets everybody in, as administrator of the default organisation."""

    async def principal(self, scope: Scope) -> Principal:
        """Anybody."""
        return ANYBODY
