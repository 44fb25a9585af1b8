"""The calculator: a few lines of Python in a worker process that has no files, no network and no clock of its own.

pydantic-monty interprets a part of Python; time and memory are bounded from outside the interpreter.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

from kvarn.config.extras import missing_extra
from kvarn.tools.builtin.function import FunctionTool
from kvarn.tools.execution import failed
from kvarn.tools.types import ToolDefinition, ToolResult

_LIMITS = {"max_feed_duration_secs": 2.0, "max_memory": 64 * 1024 * 1024}
_DEFINITION = ToolDefinition(
    "calculator",
    "Compute exactly. Give a Python expression, or statements of which the last is an expression. The modules math, "
    "datetime, json and re can be imported; files and the network cannot be reached.",
    {
        "type": "object",
        "properties": {
            "expression": {
                "type": "string",
                "maxLength": 500,
                "description": "Python, such as `math.sqrt(2) * 3` or `17 % 5`.",
            }
        },
        "required": ["expression"],
        "additionalProperties": False,
    },
)


async def _calculate(arguments: Mapping[str, Any]) -> ToolResult:
    """Compute in a thread: the package's own event loop aborts a process that exits soon afterwards (1.4.0)."""
    return await asyncio.to_thread(_compute, str(arguments.get("expression", "")))


def _compute(expression: str) -> ToolResult:
    from pydantic_monty import CollectString, Monty, MontyError

    printed = CollectString()
    try:
        with Monty(max_processes=1) as pool, pool.checkout(limits=_LIMITS) as session:  # type: ignore[arg-type]
            value = session.feed_run(_with_math(expression), print_callback=printed)
    except MontyError as error:
        return failed(str(error))
    try:
        lines = [*printed.output.splitlines(), *([] if value is None else [_shown(value)])]
    except ValueError:  # of Python, for decimal digits without end
        return failed(f"The number has more than {sys.get_int_max_str_digits()} digits: ask for a part of it.")
    return ToolResult("\n".join(lines) or "There is no value: end with an expression.")


def _with_math(expression: str) -> str:
    """Models write `math.sqrt` without importing it."""
    return expression if "import math" in expression else f"import math\n{expression}"


def _shown(value: object) -> str:
    return value if isinstance(value, str) else repr(value)


CALCULATOR = FunctionTool(_DEFINITION, _calculate, partial(missing_extra, "The tool 'calculator'", "tools"))
