"""What a key is restricted to."""

from __future__ import annotations

from kvarn.identity.scopes import check_endpoint, check_model, insufficient_permissions
from kvarn.serving.pipeline import Work


class ScopeStage:
    """Lets in what the bearer's key may use."""

    async def enter(self, work: Work) -> None:
        """Check endpoint, model and adapter: lines of a batch come by no other way.

        Raises:
            ApiError: 403 that names the scope.
        """
        check_endpoint(work.principal, work.endpoint)
        check_model(work.principal, work.model)
        adapters = work.principal.scopes.adapters
        if work.adapter and adapters is not None and work.adapter not in adapters:
            raise insufficient_permissions(f"scope: adapters:{work.adapter}")
