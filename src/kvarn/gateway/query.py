"""The query of an operation: the parameters it takes."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from kvarn.gateway.parameters import Parameter, keys_of
from kvarn.gateway.record import record_of
from kvarn.wire.openai.errors import invalid_request

_ADMINISTRATION = "/v1/organization/"
_PAGING = {"after", "before", "limit", "order"}
"""Not ignored by operations that lack them: the answer would be another."""
_MAX_WARNINGS = 8


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
        """Look at everything that a request gives, whether the operation reads it or not. Unknown parameters are
        ignored with a warning. Administration refuses them: there a misspelt one may delete too much.

        Raises:
            ApiError: 400 that names the first parameter that is wrong.
        """
        known = [parameter.takes for parameter in self.parameters]
        keys = {parameter.key for parameter in self.parameters} | _PAGING
        warnings = record_of(request.scope).warnings
        for key in sorted(key for key in keys_of(request) if not any(takes(key) for takes in known)):
            name = key[:80]
            if key.partition("[")[0] in keys or request.url.path.startswith(_ADMINISTRATION):
                raise invalid_request(f"Unrecognized query parameter supplied: {name}", name, "unknown_parameter")
            if len(warnings) < _MAX_WARNINGS:
                warnings.append(f"ignored unknown query parameter {name[:40]!a}")
        for parameter in self.parameters:
            parameter.read(request)


def check_query(request: Request) -> None:
    """Check the query of an operation that has no parameters. Raises as `Query.check` does."""
    Query().check(request)
