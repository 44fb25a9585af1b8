"""Tools that the server runs, as requests of every API name them."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict

from kvarn.wire.openai.common import RequestModel

_SECRETS = frozenset({"authorization", "headers"})


class HostedTool(RequestModel):
    """A tool that the server runs, where it has one of the type (`kvarn.tools`): its provider reads the fields."""

    model_config = ConfigDict(extra="allow")

    type: str

    @property
    def entry(self) -> dict[str, Any]:
        return self.model_dump()

    @property
    def without_secrets(self) -> dict[str, Any]:
        """The entry as it may be shown and kept."""
        return {name: value for name, value in self.entry.items() if name not in _SECRETS and value is not None}
