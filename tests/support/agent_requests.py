"""What coding agents send in a session of two turns, at their default settings: their shapes, with texts of our own."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Body = dict[str, Any]
TOLD, CONTENT, RESULT, DONE = "Write hello.txt.", "hello\n", "Wrote 6 bytes.", "The file is written."
SCHEMA = "https://json-schema.org/draft/2020-12/schema"


def _parameters(*names: str, **more: Any) -> Body:
    return {
        "type": "object",
        "properties": {name: {"type": "string"} for name in names},
        "required": list(names),
        **more,
    }


@dataclass(frozen=True)
class Session:
    """Two turns of an agent: it offers tools, runs the call that comes, and sends what came of it."""

    path: str
    headers: dict[str, str]
    tool: str
    arguments: Body
    first: Body
    second: Callable[[str], list[Body]]
    """The messages or items that the second turn adds, for the id of the call."""
    history: str = "messages"
    shown: tuple[str, ...] = ()
    """Texts in the first prompt, besides what the agent was told."""
    ignored: str | None = None
    """The header that names what the server does not do."""


CACHED = {"cache_control": {"type": "ephemeral"}}
CLAUDE_CALL = {"file_path": "/home/ada/hello.txt", "content": CONTENT}
CLAUDE = Session(
    "/v1/messages?beta=true",
    {
        "authorization": "Bearer none",
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27,"
        "prompt-caching-scope-2026-01-05,mid-conversation-system-2026-04-07,effort-2025-11-24",
        "anthropic-dangerous-direct-browser-access": "true",
        "x-app": "cli",
    },
    "Write",
    CLAUDE_CALL,
    {
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "<system-reminder>Today is Friday.</system-reminder>"},
                    {"type": "text", "text": TOLD, **CACHED},
                ],
            },
            {"role": "system", "content": "Kinds of agents: one."},
        ],
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.197.9eb; cc_entrypoint=sdk-cli;"},
            {"type": "text", "text": "You are an agent.", **CACHED},
            {"type": "text", "text": "Use the tools.", **CACHED},
        ],
        "tools": [
            {
                "name": "Write",
                "description": "Writes a file.",
                "input_schema": {"$schema": SCHEMA, **_parameters("file_path", "content", additionalProperties=False)},
            },
            {
                "name": "TaskList",
                "description": "Lists tasks.",
                "input_schema": {"$schema": SCHEMA, "type": "object", "properties": {}, "additionalProperties": False},
            },
        ],
        "metadata": {"user_id": json.dumps({"device_id": "d" * 64, "account_uuid": "", "session_id": "s" * 36})},
        "max_tokens": 32000,
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "stream": True,
    },
    lambda call: [
        {"role": "assistant", "content": [{"type": "tool_use", "id": call, "name": "Write", "input": CLAUDE_CALL}]},
        {"role": "user", "content": [{"tool_use_id": call, "type": "tool_result", "content": RESULT, **CACHED}]},
    ],
    shown=("You are an agent.", "Today is Friday.", "Kinds of agents: one.", "Writes a file."),
    ignored="thinking",
)

CODEX_CALL = {"cmd": "echo hello > hello.txt"}


def _said(role: str, *texts: str) -> Body:
    content = [{"type": "input_text", "text": text} for text in texts]
    return {"type": "message", "id": f"msg_{abs(hash(texts)):x}-0b1c", "role": role, "content": content}


def _codex_function(name: str, *names: str) -> Body:
    schema = _parameters(*names, additionalProperties=False)
    return {"type": "function", "name": name, "description": f"Does {name}.", "strict": False, "parameters": schema}


CODEX = Session(
    "/v1/responses",
    {"accept": "text/event-stream", "originator": "codex_exec", "session-id": "s-1", "x-codex-turn-metadata": "{}"},
    "exec_command",
    CODEX_CALL,
    {
        "stream": True,
        "input": [
            _said("developer", "You are a coding agent."),
            _said("developer", "Skills: none.", "The sandbox is read-only."),
            _said("user", "<environment_context><cwd>/home/ada</cwd></environment_context>"),
            _said("user", TOLD),
        ],
        "tools": [
            _codex_function("exec_command", "cmd"),
            {
                "type": "namespace",
                "name": "multi_agent_v1",
                "description": "Agents of one's own.",
                "tools": [_codex_function("spawn_agent", "message"), _codex_function("wait_agent", "target")],
            },
            {"type": "web_search", "external_web_access": False},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "s-1",
        "client_metadata": {"session_id": "s-1", "turn_id": "t-1"},
    },
    lambda call: [
        {
            "type": "function_call",
            "status": "completed",
            "id": "fc_1",
            "name": "exec_command",
            "arguments": json.dumps(CODEX_CALL),
            "call_id": call,
        },
        {"type": "function_call_output", "id": "fco_0b1c-2d", "call_id": call, "output": RESULT},
    ],
    history="input",
    shown=("You are a coding agent.", "The sandbox is read-only.", "/home/ada</cwd>", "spawn_agent"),
    ignored="reasoning.summary, tools[2]",
)


def _chat_tools(name: str, *names: str, **more: Any) -> list[Body]:
    schema = {**_parameters(*names), **more}
    return [{"type": "function", "function": {"name": name, "description": "Writes a file.", "parameters": schema}}]


def _chat_turn(content: str | None, result: Any, tool: str, arguments: Body) -> Callable[[str], list[Body]]:
    def turn(call: str) -> list[Body]:
        function = {"name": tool, "arguments": json.dumps(arguments)}
        said = {"role": "assistant", "content": content}
        said["tool_calls"] = [{"id": call, "type": "function", "function": function}]
        return [said, {"role": "tool", "tool_call_id": call, "content": result}]

    return turn


STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
OPENCODE_CALL = {"filePath": "/home/ada/hello.txt", "content": CONTENT}
OPENCODE = Session(
    "/v1/chat/completions",
    {"x-session-affinity": "ses_1", "x-session-id": "ses_1", "user-agent": "opencode/1.18.33 ai-sdk"},
    "write",
    OPENCODE_CALL,
    {
        "max_tokens": 8192,
        "messages": [{"role": "system", "content": "You are an agent."}, {"role": "user", "content": f'"{TOLD}"'}],
        "tools": _chat_tools("write", "filePath", "content", **{"$schema": SCHEMA}),
        "tool_choice": "auto",
        **STREAMED,
    },
    _chat_turn("", RESULT, "write", OPENCODE_CALL),
    shown=("You are an agent.", "Writes a file."),
)
QWEN_CALL = {"file_path": "/home/ada/hello.txt", "content": CONTENT}
QWEN = Session(
    "/v1/chat/completions",
    {"user-agent": "QwenCode/0.15.10 (linux; x64)", "accept-language": "*", "sec-fetch-mode": "cors"},
    "write_file",
    QWEN_CALL,
    {
        "messages": [
            {"role": "system", "content": "You are an agent."},
            {"role": "user", "content": [{"type": "text", "text": "The folder is /home/ada."}]},
            {"role": "assistant", "content": "Thanks."},
            {"role": "user", "content": [{"type": "text", "text": TOLD}]},
        ],
        "tools": _chat_tools(
            "write_file", "file_path", "content", **{"$schema": "http://json-schema.org/draft-07/schema#"}
        ),
        "max_tokens": 8000,
        **STREAMED,
    },
    _chat_turn(None, [{"type": "text", "text": RESULT}], "write_file", QWEN_CALL),
    shown=("You are an agent.", "The folder is /home/ada."),
)
SESSIONS = {"claude": CLAUDE, "codex": CODEX, "opencode": OPENCODE, "qwen": QWEN}
