"""The tools that requests may name: by type their provider, and who may use them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvarn.answers.context import ServingContext
from kvarn.answers.record import RequestRecord
from kvarn.clock import SYSTEM_CLOCK
from kvarn.identity.scopes import check_tool
from kvarn.store.owner import Owner, Principal
from kvarn.tools.execution import ToolRunner
from kvarn.tools.types import Tool, ToolContext, ToolProvider
from kvarn.wire.openai.errors import invalid_request

_SHOWN_CHARS = 40
MAX_TOOLS = 128
"""Functions that a request's hosted tools may offer to the model together."""


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool that the model is offered, with the entry of the request that brought it."""

    tool: Tool
    kind: str
    """The registered type, such as `web_search` for an entry of type `web_search_preview`."""
    label: str = ""

    @property
    def chat_tool(self) -> dict[str, Any]:
        """The function as a chat request names it."""
        definition = self.tool.definition
        function = {"name": definition.name, "description": definition.description}
        return {"type": "function", "function": {**function, "parameters": dict(definition.parameters)}}


@dataclass(frozen=True, slots=True)
class OfferedTools:
    by_name: Mapping[str, OfferedTool] = field(default_factory=dict)
    items: Sequence[Mapping[str, Any]] = ()

    def __iter__(self) -> Iterator[OfferedTool]:
        return iter(self.by_name.values())

    @property
    def chat_tools(self) -> list[dict[str, Any]]:
        return [each.chat_tool for each in self]

    def chosen(self, choice: Mapping[str, Any]) -> list[str]:
        """Names of the functions that a `tool_choice` of a hosted type means."""
        label, name = choice.get("server_label"), choice.get("name")
        found = [
            each
            for each in self
            if _is_of(str(choice["type"]), each.kind)
            and label in (None, each.label)
            and name in (None, each.tool.definition.name, each.tool.item_fields.get("name"))
        ]
        return [each.tool.definition.name for each in found]


class ToolRegistry:
    """Providers by type, and what runs the calls of the tools that they open."""

    def __init__(self, runner: ToolRunner) -> None:
        self.runner = runner
        self.config = runner.config
        self._providers: dict[str, ToolProvider] = {}
        self._disabled: set[str] = set()

    def register(self, kind: str, provider: ToolProvider) -> None:
        """Serve tools of a type, those with a version or suffix too: `web_search` is also `web_search_preview`. A type
        that the configuration does not enable stays unserved."""
        if self.config.enabled is None or kind in self.config.enabled:
            self._providers[kind] = provider
        else:
            self._disabled.add(kind)

    async def problems(self, owner: Owner) -> dict[str, str | None]:
        """Every type of tools, with the reason why a project cannot use it here; None: it can."""
        off = "It is turned off in the server's configuration (tools.enabled)."
        found = {kind: await provider.problem(owner) for kind, provider in self._providers.items()}
        return dict(sorted((found | dict.fromkeys(self._disabled, off)).items()))

    def kind_of(self, named: str) -> str | None:
        """The registered type of a request's; None: no tool of that type is run here."""
        return next((kind for kind in self._providers if _is_of(named, kind)), None)

    def served(self, record: RequestRecord, asked: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Mapping[str, Any]]:
        """Those of a request's entries (each with its place, such as `tools[0]`) that are of a served type; the others
        are ignored with a warning. Raises `ApiError`: 403, the project or the key may not use a type."""
        found = []
        for where, entry in asked:
            kind = self.kind_of(str(entry["type"]))
            if kind is None:
                _warn_of(record, where, entry)
                continue
            self._check(record.principal, kind, entry)
            found.append(entry)
        return found

    async def open(
        self, context: ToolContext, asked: Sequence[tuple[str, Mapping[str, Any]]], taken: Mapping[str, str]
    ) -> OfferedTools:
        """Open the tools of a request. `taken`: names of the client's own functions, with their places. Raises
        `ApiError` as providers do, and 400 where two functions have one name."""
        by_name: dict[str, OfferedTool] = {}
        items: list[Mapping[str, Any]] = []
        for where, entry in asked:
            kind = self.kind_of(str(entry["type"]))
            if kind is None:
                _warn_of(context.record, where, entry)
                continue
            self._check(context.record.principal, kind, entry)
            opened = await self._providers[kind].open(context, entry)
            if not opened.tools and not opened.items:
                _warn_of(context.record, where, entry)
            items += opened.items
            for tool in opened.tools:
                name = tool.definition.name
                other = taken.get(name) or (name in by_name and "another of 'tools'") or None
                if other:
                    message = f"'{where}' offers a function named {name!r}, as {other} does: rename or leave out one."
                    raise invalid_request(message, where, "tool_name_taken")
                by_name[name] = OfferedTool(tool, kind, str(entry.get("server_label") or ""))
            if len(by_name) > MAX_TOOLS:
                message = f"'tools' offer more than {MAX_TOOLS} functions: name fewer (of a server: 'allowed_tools')."
                raise invalid_request(message, where, "too_many_tools")
        return OfferedTools(by_name, items)

    def context(self, serving: ServingContext, record: RequestRecord) -> ToolContext:
        deadline = SYSTEM_CLOCK.now() + self.config.call_timeout_s
        return ToolContext(serving, record, deadline, self.config.max_result_bytes)

    def _check(self, principal: Principal, kind: str, entry: Mapping[str, Any]) -> None:
        check_tool(principal, kind, str(entry.get("server_label") or ""))


def _is_of(named: str, kind: str) -> bool:
    return named == kind or named.startswith(f"{kind}_")


def _warn_of(record: RequestRecord, where: str, entry: Mapping[str, Any]) -> None:
    kind = str(entry["type"])[:_SHOWN_CHARS]
    record.warn(f"ignored the tool '{where}', this server runs none of type {kind!a}")


@dataclass(frozen=True, slots=True)
class ToolsContext(ServingContext):
    """The context of operations whose requests may name tools of the platform."""

    tools: ToolRegistry
