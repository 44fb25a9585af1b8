"""The servers of an external model, as the simulator has them: how long answers take, and how many fail."""

from __future__ import annotations

from typing import Annotated

import msgspec

from kvarn.costs.replica_model import Distribution


class ServerModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Each of a model's servers; what is drawn is drawn for each request anew."""

    first_token_s: Distribution
    """Seconds from the sending of a request to its first token."""
    token_s: Distribution = Distribution()
    """Seconds for each token after it."""
    failure_rate: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    """Part of the requests that fail before their first token."""
    failure_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Seconds after which a failure is told."""
