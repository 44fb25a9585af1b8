"""The clock: the date and the time in a time zone, which a model cannot know."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from kvarn.clock import SYSTEM_CLOCK
from kvarn.tools.builtin.function import FunctionTool
from kvarn.tools.execution import failed
from kvarn.tools.types import ToolDefinition, ToolResult

_DEFINITION = ToolDefinition(
    "clock",
    "Tell the date and the time now.",
    {
        "type": "object",
        "properties": {
            "time_zone": {
                "type": "string",
                "maxLength": 64,
                "description": "IANA name, such as `Europe/Stockholm`. Default: UTC.",
            }
        },
        "additionalProperties": False,
    },
)


async def _tell(arguments: Mapping[str, Any]) -> ToolResult:
    name = str(arguments.get("time_zone") or "UTC")
    try:
        zone = UTC if name.upper() == "UTC" else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return failed(f"There is no time zone {name[:80]!r}: give an IANA name, such as Europe/Stockholm.")
    now = datetime.fromtimestamp(SYSTEM_CLOCK.time(), zone)
    return ToolResult(f"{now.isoformat(timespec='seconds')} ({now.strftime('%A')}, {name})")


CLOCK = FunctionTool(_DEFINITION, _tell)
