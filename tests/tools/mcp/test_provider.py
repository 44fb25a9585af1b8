"""Tools of type `mcp`, with servers that the SDK made."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from mcp.server import MCPServer
from mcp.server.mcpserver import Context, Image
from openai.types.responses.response_output_item import McpCall, McpListTools

from kvarn.answers.errors import ApiError
from kvarn.store.engine import Store
from kvarn.store.owner import Principal
from mcp_servers import call, context, entry, on_socket, provider, tool_config
from new_tenants import create_organization

SEEN: list[str | None] = []


def weather_server() -> MCPServer:
    server = MCPServer("weather", instructions="Weather of cities.")

    @server.tool(annotations={"readOnlyHint": True})  # type: ignore[arg-type]
    def forecast(city: str, days: int = 1) -> str:
        """Forecast of a city."""
        return f"{city}: sunny for {days} days"

    @server.tool()
    def report(text: str) -> dict[str, int]:
        """Report the weather."""
        return {"chars": len(text)}

    @server.tool()
    def fails() -> str:
        """Always fails."""
        raise ValueError("the thermometer is broken")

    @server.tool()
    def picture() -> Image:
        """Picture of the sky."""
        return Image(data=b"\x89PNG" * 10, format="png")

    @server.tool()
    def long() -> str:
        """A long text."""
        return "ü" * 20_000

    @server.tool()
    def credentials(context: Context[Any, Any]) -> str:
        """Who asks."""
        headers = context.headers or {}
        SEEN.append(headers.get("authorization"))
        return "noted"

    return server


@pytest.fixture
async def principal(store: Store) -> Principal:
    return await create_organization(store, "acme")


@pytest.fixture
async def place() -> AsyncGenerator[str, None]:
    async with on_socket(weather_server().streamable_http_app(stateless_http=True)) as address:
        yield address


async def test_a_server_of_a_request_lists_its_tools_and_runs_them(
    store: Store, principal: Principal, place: str
) -> None:
    tools = provider(store, tool_config(allow_private=[place]))
    asked = context(principal)
    opened = await tools.open(asked, entry("weather", place, server_description="Weather"))
    item = McpListTools.model_validate(opened.items[0])
    assert {tool.name for tool in item.tools} >= {"forecast", "report"}
    assert item.error is None
    assert item.tools[0].annotations == {"readOnlyHint": True}
    forecast = opened.tools[0]
    assert forecast.definition.name == "weather__forecast"
    assert forecast.definition.description == "Weather: Forecast of a city."
    assert forecast.definition.parameters["required"] == ["city"]
    result = await forecast.call(asked, call("weather__forecast", '{"city": "Oslo", "days": 3}'))
    assert (result.output, result.status, result.error) == ("Oslo: sunny for 3 days", "completed", None)
    fields = {**forecast.item_fields, **result.item}
    made = McpCall.model_validate({"id": "mcp_1", "type": "mcp_call", "arguments": "{}", **fields})
    assert (made.server_label, made.name, made.output) == ("weather", "forecast", "Oslo: sunny for 3 days")


async def opened_by_name(tools: Any, asked: Any, place: str) -> dict[str, Any]:
    opened = await tools.open(asked, entry("w", place))
    return {tool.name: tool for tool in opened.tools}


async def test_results_are_texts_whatever_they_hold_and_failures_are_typed(
    store: Store, principal: Principal, place: str
) -> None:
    asked = context(principal, max_result_bytes=1001)
    named = await opened_by_name(provider(store, tool_config(allow_private=[place])), asked, place)
    assert '"chars": 5' in (await named["report"].call(asked, call("w__report", '{"text": "abcde"}'))).output
    shown = await named["picture"].call(asked, call("w__picture"))
    assert shown.output == "[image, image/png, 40 bytes: not shown]"
    long = await named["long"].call(asked, call("w__long"))
    assert long.output == "ü" * 500 + "\n[The rest was cut off: it is longer than a result may be.]"
    assert long.metadata == ("The result of w__long was cut: it is longer than 1001 bytes.",)
    broken = await named["fails"].call(asked, call("w__fails"))
    assert broken.status == "failed"
    assert broken.error is not None
    assert broken.error["type"] == "mcp_tool_execution_error"
    assert broken.output.startswith("The call failed: ")
    wrong = await named["forecast"].call(asked, call("w__forecast", '{"town": 1}'))
    assert wrong.status == "failed"
    for arguments in ("[1]", "{", "{" * 5000):
        assert (await named["forecast"].call(asked, call("w__forecast", arguments))).status == "failed"
    McpCall.model_validate(
        {"id": "mcp_1", "type": "mcp_call", "arguments": "", "error": broken.error, **named["fails"].item_fields}
    )


async def test_approval_and_choice_of_tools_are_as_the_request_says(
    store: Store, principal: Principal, place: str
) -> None:
    tools, asked = provider(store, tool_config(allow_private=[place])), context(principal)

    async def waiting(**fields: Any) -> dict[str, bool]:
        opened = await tools.open(asked, entry("w", place, **fields))
        return {tool.item_fields["name"]: tool.needs_approval for tool in opened.tools}

    assert set((await waiting(require_approval=None)).values()) == {True}, "OpenAI's default"
    assert set((await waiting(require_approval="never")).values()) == {False}
    some = await waiting(require_approval={"never": {"tool_names": ["forecast"]}})
    assert [name for name, waits in some.items() if not waits] == ["forecast"]
    some = await waiting(require_approval={"never": {"read_only": True}, "always": {"tool_names": ["forecast"]}})
    assert set(some.values()) == {True}, "always is stronger"
    assert list(await waiting(allowed_tools=["report", "nothing"])) == ["report"]
    assert list(await waiting(allowed_tools={"read_only": True})) == ["forecast"]


async def test_credentials_of_a_request_reach_its_server_and_nobody_else(
    store: Store, principal: Principal, place: str
) -> None:
    SEEN.clear()
    tools, asked = provider(store, tool_config(allow_private=[place])), context(principal)
    opened = await tools.open(asked, entry("w", place, authorization="s3cret"))
    named = {tool.item_fields["name"]: tool for tool in opened.tools}
    await named["credentials"].call(asked, call("w__credentials"))
    opened = await tools.open(asked, entry("w", place))
    named = {tool.item_fields["name"]: tool for tool in opened.tools}
    await named["credentials"].call(asked, call("w__credentials"))
    assert SEEN == ["Bearer s3cret", None]
    assert "s3cret" not in repr((opened, tools, named, asked))


async def test_a_server_that_speaks_the_older_protocol_is_understood(store: Store, principal: Principal) -> None:
    async with on_socket(weather_server().streamable_http_app()) as place:
        tools, asked = provider(store, tool_config(allow_private=[place])), context(principal)
        named = {tool.item_fields["name"]: tool for tool in (await tools.open(asked, entry("w", place))).tools}
        result = await named["forecast"].call(asked, call("w__forecast", '{"city": "Oslo"}'))
        assert result.output == "Oslo: sunny for 1 days"


@pytest.mark.thorough
async def test_a_command_of_the_operator_runs_once_for_all_and_again_when_it_died(
    store: Store, principal: Principal, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "of this process")
    script = tmp_path / "server.py"
    script.write_text(
        "import os\nfrom mcp.server import MCPServer\nserver = MCPServer('local')\n"
        "@server.tool()\ndef who() -> str:\n    return os.environ['NAME'] + str('SECRET' in os.environ)\n"
        "@server.tool()\ndef pid() -> int:\n    return os.getpid()\n"
        "server.run('stdio')\n"
    )
    server = {"name": "local", "command": [sys.executable, str(script)], "environment": {"NAME": "kvarn "}}
    tools, asked = provider(store, tool_config(servers=[server])), context(principal)
    opened = await tools.open(asked, {"type": "mcp", "server_label": "local"})
    assert {tool.needs_approval for tool in opened.tools} == {False}, "the operator trusts it"
    who, pid = opened.tools
    assert (await who.call(asked, call("local__who"))).output == "kvarn False"
    first, again = await asyncio.gather(*[pid.call(asked, call("local__pid")) for _ in range(2)])
    assert first.output == again.output
    os.kill(int(first.output), signal.SIGKILL)
    kept = tools.sessions._commands._kept["local"]
    while not kept.has_ended:
        await pid.call(asked, call("local__pid"))
    assert int((await pid.call(asked, call("local__pid"))).output) != int(first.output)
    kept = tools.sessions._commands._kept["local"]
    kept.end()
    await asyncio.wait_for(kept._task, 60)


async def test_a_server_that_others_wrote_is_used(store: Store, principal: Principal) -> None:
    """The time server of the protocol's makers, as a command."""
    pytest.importorskip("mcp_server_time")
    server = {"name": "time", "command": [sys.executable, "-m", "mcp_server_time", "--local-timezone", "UTC"]}
    tools, asked = provider(store, tool_config(servers=[server])), context(principal)
    opened = await tools.open(asked, {"type": "mcp", "server_label": "time"})
    named = {tool.definition.name: tool for tool in opened.tools}
    assert set(named) == {"time__get_current_time", "time__convert_time"}
    arguments = '{"source_timezone": "Europe/Oslo", "time": "12:00", "target_timezone": "Asia/Tokyo"}'
    converted = await named["time__convert_time"].call(asked, call("time__convert_time", arguments))
    assert (converted.status, "Asia/Tokyo" in converted.output) == ("completed", True)
    wrong = await named["time__get_current_time"].call(asked, call("time__get_current_time", '{"timezone": "Mars"}'))
    assert wrong.status == "failed"
    kept = tools.sessions._commands._kept["time"]
    kept.end()
    await asyncio.wait_for(kept._task, 60)


@pytest.mark.parametrize(
    ("fields", "code", "says"),
    [
        ({"server_label": "unknown", "server_url": None}, "tool_server_not_found", "server_url"),
        ({"server_url": "ftp://a"}, "invalid_value", "https://"),
        ({"server_url": "https://user:pw@a/"}, "invalid_value", "no password"),
        ({"headers": {"host": "internal"}}, "invalid_value", "'host' cannot be set"),
        ({"headers": {"a": "b\r\nc: d"}}, "invalid_value", "printable"),
        ({"server_label": "a__b"}, "invalid_value", "server_label"),
        ({"server_label": "a.b"}, "invalid_value", "server_label"),
        ({"connector_id": "connector_gmail"}, "unsupported_parameter", "connector_id"),
        ({"authorization": "x", "headers": {"Authorization": "y"}}, "invalid_value", "not both"),
        ({"require_approval": "sometimes"}, "invalid_value", "require_approval"),
    ],
)
async def test_entries_that_are_no_good_are_told_why(
    store: Store, principal: Principal, fields: dict[str, Any], code: str, says: str
) -> None:
    tools = provider(store, tool_config())
    with pytest.raises(ApiError, match=says) as error:
        await tools.open(context(principal), {**entry("w", "127.0.0.1:9"), **fields})
    assert error.value.code == code


async def test_servers_of_requests_can_be_switched_off(store: Store, principal: Principal) -> None:
    tools = provider(store, tool_config(request_servers=False))
    with pytest.raises(ApiError, match="registered tool servers only"):
        await tools.open(context(principal), entry("w", "127.0.0.1:9"))


async def test_a_server_that_cannot_be_asked_is_told_in_its_item_and_a_warning(
    store: Store, principal: Principal
) -> None:
    tools, asked = provider(store, tool_config()), context(principal)
    opened = await tools.open(asked, entry("w", "127.0.0.1:9"))
    assert opened.tools == []
    error = McpListTools.model_validate(opened.items[0]).error
    assert error == (
        "'127.0.0.1' leads to an address that is not public: this server's operator can allow it in tools.allow_private"
    )
    assert asked.record.reply.warnings == [f"the tools of 'w' could not be listed: {error}"]
