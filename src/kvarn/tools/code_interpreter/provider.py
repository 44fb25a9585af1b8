"""The tool `code_interpreter` of a request: its container, and the function that the model calls."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field, ValidationError

from kvarn.answers.chat.tool_calls import arguments_object
from kvarn.clock import SYSTEM_CLOCK
from kvarn.sandbox.bubblewrap import WORK_FOLDER, find_bubblewrap
from kvarn.sandbox.errors import NoSandboxError
from kvarn.store.errors import NotFoundError
from kvarn.store.models import Container, File
from kvarn.store.owner import Owner
from kvarn.store.repositories import containers as stored
from kvarn.store.repositories.containers import ContainerFullError
from kvarn.store.repositories.contents import read_content
from kvarn.store.repositories.files import find_file
from kvarn.tools.code_interpreter.containers import CodeOutcome, Containers
from kvarn.tools.code_interpreter.interpreter import shown_path
from kvarn.tools.types import OpenedTools, ToolCall, ToolContext, ToolDefinition, ToolResult, WrittenFile
from kvarn.wire.openai.common import RequestModel
from kvarn.wire.openai.containers import ContainerRequest, MemoryLimit, NetworkPolicy
from kvarn.wire.openai.errors import ApiError, invalid_request

NAME = "code_interpreter"
_IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".svg")
_MARGIN_S = 1.0
"""Time that a call has left for its files when its code is stopped."""


class AutoContainer(RequestModel):
    type: str = Field(pattern="^auto$")
    file_ids: list[str] = Field(default_factory=list, max_length=50)
    memory_limit: MemoryLimit | None = None
    network_policy: NetworkPolicy | None = None


async def make_container(containers: Containers, owner: Owner, asked: ContainerRequest, param: str = "") -> Container:
    """A container that is not stored yet, as a client asks for it. Raises `ApiError`: 400."""
    check_network(asked.network_policy, param)
    if asked.skills:
        raise invalid_request("'skills' are not served: upload their files.", f"{param}skills", "unsupported_value")
    memory_mib = min(1024, containers.config.code_memory_mib)
    if asked.memory_limit is not None:
        memory_mib = int(asked.memory_limit.removesuffix("g")) * 1024
        if memory_mib > containers.config.code_memory_mib:
            most = containers.config.code_memory_mib
            message = f"'{param}memory_limit' is more than this server gives: {most} MiB (sandbox.code_memory_mib)."
            raise invalid_request(message, f"{param}memory_limit")
    idle_s = int(containers.config.code_idle_s)
    if asked.expires_after is not None:
        idle_s = min(idle_s, asked.expires_after.minutes * 60)
    now = int(containers.store.now())
    return stored.new_container(owner, name=asked.name, idle_s=idle_s, memory_mib=memory_mib, now=now)


def check_network(policy: NetworkPolicy | None, param: str = "") -> None:
    """Raises `ApiError`: 400, code never reaches a network."""
    if policy is not None and policy.type != "disabled":
        message = f"'{param}network_policy' can only be 'disabled' here: code has no network, not even to some domains."
        raise invalid_request(message, f"{param}network_policy", "unsupported_value")


async def fill_container(containers: Containers, owner: Owner, container: Container, file_ids: Sequence[str]) -> None:
    """Store a container with copies of files. Raises `ApiError`, and leaves nothing, where one is too large, and
    `NotFoundError`."""
    files = [await find_file(containers.store, owner, file_id) for file_id in file_ids]
    if sum(file.size for file in files) > containers.max_bytes:
        raise container_full(ContainerFullError(containers.max_bytes), "file_ids")
    await stored.add_container(containers.store, container)
    try:
        for file in files:
            await copy_file(containers, container, file)
    except BaseException:
        await asyncio.shield(stored.delete_container(containers.store, owner, container.id))
        raise


async def copy_file(containers: Containers, container: Container, file: File) -> File:
    """Copy a file into a container, under its name. Raises `ApiError`: 413."""
    try:
        return await stored.write_container_file(
            containers.store,
            container,
            file.filename,
            read_content(containers.store, file),
            source="user",
            max_bytes=containers.max_bytes,
        )
    except ContainerFullError as error:
        raise container_full(error, "file_id") from None


def container_full(error: ContainerFullError, param: str) -> ApiError:
    message = f"{error} Delete some, or raise sandbox.code_files_mib of the server."
    return ApiError(413, message, code="request_too_large", param=param)


class CodeInterpreterProvider:
    def __init__(self, containers: Containers) -> None:
        self._containers = containers

    async def open(self, context: ToolContext, asked: Mapping[str, Any]) -> OpenedTools:
        owner = context.record.principal.owner
        if (problem := await self.problem(owner)) is not None:
            raise invalid_request(problem, "tools", "sandbox_unavailable")
        named = asked.get("container")
        if isinstance(named, str):
            try:
                container = await stored.find_container(self._containers.store, owner, named)
            except NotFoundError as error:
                raise invalid_request(str(error), "tools.container", "container_not_found") from None
            return OpenedTools([CodeTool(self._containers, owner, container, None)])
        auto = _read_auto({"type": "auto"} if named is None else named)
        request = ContainerRequest(
            name="auto", memory_limit=auto.memory_limit, network_policy=auto.network_policy, file_ids=auto.file_ids
        )
        made = await make_container(self._containers, owner, request, "tools.container.")
        for file_id in auto.file_ids:
            await find_file(self._containers.store, owner, file_id)  # before the model is asked
        return OpenedTools([CodeTool(self._containers, owner, made, auto.file_ids)])

    async def problem(self, owner: Owner) -> str | None:
        try:
            await asyncio.to_thread(find_bubblewrap)
        except NoSandboxError as error:
            return f"The code interpreter needs a sandbox, and this server has none: {error}"
        return None


@dataclass(slots=True)
class CodeTool:
    """Runs code in one container, which is stored at the first call: most requests have none."""

    containers: Containers
    owner: Owner
    container: Container
    missing: Sequence[str] | None
    """Ids of the files for a container that is not stored yet; None: it is."""
    filling: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Calls of one turn run at once: one of them stores the container, the others wait."""
    needs_approval: bool = False
    item_type: str = "code_interpreter_call"

    @property
    def item_fields(self) -> Mapping[str, Any]:
        return {"container_id": self.container.id}

    @property
    def definition(self) -> ToolDefinition:
        packages = self.containers.packages
        found = (each.name.removesuffix(".py") for each in packages.iterdir()) if packages else ()
        also = ", ".join(sorted(name for name in found if _is_package(name))[:40])
        importable = f"The standard library and {also}" if also else "Only the standard library"
        description = (
            "Run Python code and see what it prints, and the value of an expression at its end. Variables are kept "
            f"between calls. Files are in {WORK_FOLDER}; write files there for the user. There is no network and no "
            f"subprocess. {importable} can be imported."
        )
        code = {"type": "string", "description": "Python code"}
        parameters = {
            "type": "object",
            "properties": {"code": code},
            "required": ["code"],
            "additionalProperties": False,
        }
        return ToolDefinition(NAME, description, parameters)

    async def call(self, context: ToolContext, call: ToolCall) -> ToolResult:
        code = arguments_object(call.arguments).get("code")
        if not isinstance(code, str):
            return ToolResult("The arguments are no JSON object with a text 'code'.", "failed", item={"code": ""})
        async with self.filling:
            if self.missing is not None:
                await fill_container(self.containers, self.owner, self.container, self.missing)
                self.missing = None
        left_s = context.deadline - SYSTEM_CLOCK.now() - _MARGIN_S
        timeout_s = max(0.1, min(self.containers.config.code_timeout_s, left_s))
        try:
            outcome = await self.containers.run(self.owner, self.container.id, code, round(timeout_s, 1))
        except NotFoundError as error:
            return ToolResult(str(error), "failed", item={"code": code, "outputs": []})
        return self._result(code, outcome)

    def _result(self, code: str, outcome: CodeOutcome) -> ToolResult:
        outputs: list[dict[str, str]] = []
        logs = "\n".join(filter(None, [*outcome.notes, outcome.logs]))
        if logs:
            outputs.append({"type": "logs", "logs": logs})
        for file in outcome.files:
            if file.filename.lower().endswith(_IMAGE_SUFFIXES):
                outputs.append({"type": "image", "url": f"/v1/containers/{self.container.id}/files/{file.id}/content"})
        written = [f"Wrote {shown_path(file.filename)} ({file.size:,} bytes)." for file in outcome.files]
        output = "\n".join([logs.rstrip(), *written]).strip() or "The code printed nothing."
        return ToolResult(
            output,
            "failed" if outcome.failed else "completed",
            item={"code": code, "outputs": outputs},
            files=[WrittenFile(self.container.id, file.id, shown_path(file.filename)) for file in outcome.files],
            metadata=outcome.notes,
        )


def _read_auto(named: object) -> AutoContainer:
    try:
        return AutoContainer.model_validate(named)
    except ValidationError as error:
        wrong = error.errors()[0]
        where = ".".join(["tools.container", *map(str, wrong["loc"])])
        raise invalid_request(f"Invalid value for '{where}': {wrong['msg']}.", where) from None


def _is_package(name: str) -> bool:
    return name.isidentifier() and not name.startswith("_") and name != "bin"
