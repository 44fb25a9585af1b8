"""The models that are tried for one request, one after another; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from kvarn.config.routes import FallbackConfig, FallbackReason
from kvarn.routing.model_choice import next_fallback, split_version

ROUTE = ""
"""Key of a route's fallbacks among those of models: a rollout's route has the name of a model."""
_NOT_BEGUN: tuple[FallbackReason, ...] = ("error", "timeout", "overload", "not_ready")


class Fallbacks:
    """The fallbacks of one request. `ladders`: those of each model, and of the route by `ROUTE`; `may_use`:
    whether the request may have a model."""

    def __init__(
        self,
        first: str,
        ladders: Mapping[str, Sequence[FallbackConfig]],
        may_use: Callable[[str], bool] = lambda model: True,
    ) -> None:
        self._tried = [first]
        self._ladders = ladders
        self._may_use = may_use

    @property
    def may_fall_back(self) -> bool:
        """Whether another model may answer where the present one does not begin an answer."""
        return any(next(self.following(reason), None) for reason in _NOT_BEGUN)

    def following(self, reason: FallbackReason) -> Iterator[str]:
        """The models that may come next where the present one cannot begin for this reason."""
        passed, owners = list(self._tried), [*(split_version(name)[0] for name in reversed(self._tried)), ROUTE]
        while (model := next_fallback(reason, owners, self._ladders, passed)) is not None:
            passed.append(model)
            owners.insert(0, model)
            if self._may_use(model):
                yield model

    def go_on(self, model: str) -> None:
        """Try this one now."""
        self._tried.append(model)
