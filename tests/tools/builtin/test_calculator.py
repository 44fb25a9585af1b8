"""The calculator's results that are too long to be shown."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from kvarn.tools.builtin.calculator import CALCULATOR
from kvarn.tools.types import ToolCall, ToolContext, ToolResult

pytest.importorskip("pydantic_monty")


async def calculate(expression: str) -> ToolResult:
    context = ToolContext(cast(Any, None), cast(Any, None), deadline=1e12, max_result_bytes=100)
    return await CALCULATOR.call(context, ToolCall("call_1", "calculator", json.dumps({"expression": expression})))


async def test_a_long_result_is_cut_for_the_client_too() -> None:
    result = await calculate("'x' * 1000")
    assert result.output == result.item["output"] and result.output.startswith("x" * 100 + "\n[The rest was cut off")


@pytest.mark.parametrize(("expression", "says"), [("10**5000", "more than"), ("raise ValueError('x' * 10**6)", "xxx")])
async def test_a_failure_is_told_shortly(expression: str, says: str) -> None:
    result = await calculate(expression)
    assert result.status == "failed" and says in result.output and len(result.output) < 5000
