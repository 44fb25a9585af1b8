"""The query of an operation: the parameters it takes, and no others."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from kvarn.gateway.parameters import Parameter, keys_of
from kvarn.wire.openai.errors import invalid_request


class Query:
    """Declares the query parameters of an operation, which is read and described by the same declaration.

        _ERASE = Flag("erase_usage", "Delete its usage too.", default=False)
        _DELETE = Query(_ERASE)

        @router.delete("/{tenant_id}", summary="Delete an organisation", openapi_extra=_DELETE.described)
        async def delete_tenant(request: Request, tenant_id: str) -> Response:
            _DELETE.check(request)
            erase_usage = _ERASE.read(request)

    Args:
        parameters: All that a request may give.
    """

    def __init__(self, *parameters: Parameter) -> None:
        self.parameters = parameters

    @property
    def described(self) -> dict[str, Any]:
        """`openapi_extra` of the operation; `|` joins it to that of its body."""
        return {"parameters": [parameter.described for parameter in self.parameters]}

    def check(self, request: Request) -> None:
        """Look at everything that a request gives, whether the operation reads it or not.

        Raises:
            ApiError: 400 that names the first parameter that is unknown or wrong.
        """
        known = [parameter.takes for parameter in self.parameters]
        unknown = sorted(key for key in keys_of(request) if not any(takes(key) for takes in known))
        if unknown:
            name = unknown[0][:80]
            raise invalid_request(f"Unrecognized query parameter supplied: {name}", name, "unknown_parameter")
        for parameter in self.parameters:
            parameter.read(request)


def check_query(request: Request) -> None:
    """Refuse all query parameters: the operation has none.

    Raises:
        ApiError: 400 that names the first of them.
    """
    Query().check(request)
