"""The range of time of a page, as its address has it: `15m`, `1h`, `24h`."""

from __future__ import annotations

from pydantic import Field

from kvarn.gateway.query import QueryModel, Text
from kvarn.observe.history import COARSE_S
from kvarn.wire.openai.errors import invalid_request

_UNITS = {"m": 60, "h": 3600}


class RangeQuery(QueryModel):
    range: str = Field("1h", pattern=r"^[1-9][0-9]{0,3}[mh]$")
    model: Text | None = None

    @property
    def seconds(self) -> float:
        """Raises `ApiError` 400 where it is longer than the history."""
        found = float(int(self.range[:-1]) * _UNITS[self.range[-1]])
        if found > COARSE_S:
            raise invalid_request("Invalid value for 'range': the history goes back 24h at most.", "range")
        return found
