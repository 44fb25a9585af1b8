"""Items of tools that run here: made of what the loop tells, and read again as the model was shown them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kvarn.tools.items import result_fields
from kvarn.tools.loop import ApprovalAsked, CallBegun, CallEnded
from kvarn.tools.quotations import Quotations
from kvarn.tools.registry import OfferedTool, OfferedTools
from kvarn.tools.types import Quote, ToolCall
from kvarn.wire.openai.errors import invalid_request
from kvarn.wire.openai.responses.hosted import HOSTED_CALLS, MODEL_VIEW
from kvarn.wire.openai.responses.items import StoredItem

_NO_RESULT = "The result is not known here: the client sent this call back without it."


@dataclass(frozen=True, slots=True)
class ModelView:
    """A call as the model was shown it."""

    call_id: str
    name: str
    arguments: str
    output: str
    turn: str
    """Names the model's turn that made it: calls of one turn stand together."""


def ended_fields(step: CallEnded, response_id: str, quotations: Quotations) -> StoredItem:
    """The fields of a call's item that its end changes or adds."""
    call = step.begun.call
    view = {
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
        "output": step.shown,
        "turn": f"{response_id}/{step.round}",
        "boundary": quotations.boundary,
        "next_number": quotations.next_number,
        "quotes": [each for each in quotations.numbered() if each["number"] in step.numbers],
    }
    return {**result_fields(step), MODEL_VIEW: view}


def approval_item(step: ApprovalAsked) -> StoredItem:
    call, fields = step.call, dict(step.offered.tool.item_fields)
    label, name = fields.get("server_label", step.offered.label or "kvarn"), fields.get("name", call.name)
    view = {"call_id": call.id, "name": call.name}
    item = {"type": "mcp_approval_request", "server_label": label, "name": name, "arguments": call.arguments}
    return item | {MODEL_VIEW: view}


def view_of(item: StoredItem) -> ModelView:
    """A call as the model was shown it; of one that a client sent back, what its fields tell."""
    kept = item.get(MODEL_VIEW)
    if kept is not None:
        return ModelView(*(kept[name] for name in ("call_id", "name", "arguments", "output", "turn")))
    name, arguments, output = _public_view(item)
    return ModelView(f"call_{item['id']}", name, arguments, output, item["id"])


def _public_view(item: StoredItem) -> tuple[str, str, str]:
    kind = item["type"]
    if kind == "mcp_call":
        error = item.get("error")
        output = item.get("output") or (json.dumps(error, ensure_ascii=False) if error else _NO_RESULT)
        return f"{item['server_label']}__{item['name']}", item["arguments"], output
    if kind == "file_search_call":
        found = [f"{each.get('filename', '')}: {each.get('text', '')}" for each in item.get("results") or ()]
        return "file_search", json.dumps({"queries": item["queries"]}), "\n\n".join(found) or _NO_RESULT
    if kind == "web_search_call":
        return "web_search", json.dumps({"query": item["action"].get("query") or ""}), _NO_RESULT
    logs = [str(each.get("logs", "")) for each in item.get("outputs") or ()]
    return "code_interpreter", json.dumps({"code": item.get("code") or ""}), "\n".join(logs) or _NO_RESULT


def quotations_of(items: Iterable[StoredItem], boundary: str) -> Quotations:
    """Quotations of a conversation so far; it goes on with its own boundary, or begins with this one."""
    found = Quotations(boundary)
    for item in items:
        view = item.get(MODEL_VIEW) if item["type"] in HOSTED_CALLS else None
        if view is not None:
            found.boundary = view["boundary"]
            found.next_number = max(found.next_number, view["next_number"])
            for each in view["quotes"]:
                fields = {name: value for name, value in each.items() if name != "number"}
                found.quotes[each["number"]] = Quote(**fields)
    return found


class Approvals:
    def __init__(self, items: Sequence[StoredItem]) -> None:
        self.requests = {item["id"]: item for item in items if item["type"] == "mcp_approval_request"}
        self._ran = {item.get("approval_request_id") for item in items if item["type"] == "mcp_call"}
        self._answers = [item for item in items if item["type"] == "mcp_approval_response"]

    def denied_by(self, answer: StoredItem) -> ModelView | None:
        """The call that an answer forbids, with that as its result; None: it allows it, or there is no such call."""
        request = self.requests.get(answer["approval_request_id"])
        if answer["approve"] or request is None:
            return None
        why = f" The reason given: {answer['reason']}" if answer.get("reason") else ""
        call = _call_of(request)
        return ModelView(call.id, call.name, call.arguments, f"The user did not allow this call.{why}", request["id"])

    def approved(self, offered: OfferedTools) -> list[CallBegun]:
        """Calls that may run now: approved, and not run before. Raises `ApiError` 400: of a tool that the request does
        not offer any more."""
        begun: dict[str, CallBegun] = {}
        for answer in self._answers:
            request_id = answer["approval_request_id"]
            request = self.requests.get(request_id)
            if request is None or not answer["approve"] or request_id in self._ran or request_id in begun:
                continue
            tool = _offered_for(request, offered)
            if tool is None:
                message = (
                    f"The approved call of {request['name'][:80]!r} cannot run: 'tools' has no such tool of the server "
                    f"{request['server_label'][:80]!r}. Send the tools with which the call was made."
                )
                raise invalid_request(message, "tools", "tool_not_offered")
            call = _call_of(request)
            call = ToolCall(call.id, tool.tool.definition.name, call.arguments)
            begun[request_id] = CallBegun(tool, call, request_id)
        return list(begun.values())


def _call_of(request: StoredItem) -> ToolCall:
    view: Mapping[str, str] = request.get(MODEL_VIEW) or {}
    call_id = view.get("call_id", f"call_{request['id']}")
    name = view.get("name", f"{request['server_label']}__{request['name']}")
    return ToolCall(call_id, name, request["arguments"])


def _offered_for(request: StoredItem, offered: OfferedTools) -> OfferedTool | None:
    known = (request.get(MODEL_VIEW) or {}).get("name")
    for each in offered:
        fields = each.tool.item_fields
        label = fields.get("server_label", each.label or "kvarn")
        name = fields.get("name", each.tool.definition.name)
        if known == each.tool.definition.name or (label, name) == (request["server_label"], request["name"]):
            return each
    return None
