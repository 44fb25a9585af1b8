"""Turns of one request with tools: the model is asked, what it calls is run, the results go back to it.

    ask ──▶ deltas ──▶ no call ─────────────────────────────────────────────▶ end
     ▲                 calls of the client's functions (too) ──▶ run ours ──▶ end: the client runs its own
     │                 calls that wait for approval ──────────▶ run others ─▶ end: the client is asked
     │                 calls of ours
     │                    ▼
     └── results ◀── run, some at once ── a limit is reached: the model is asked once more, without tools

All turns are under one record; each is taken in, limited and entered into the ledger by itself. A turn's prompt is the
one before it, what the model wrote, and the results: it begins with tokens that the engine has cached.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from kvarn.answers.chat.answer import ChatRun
from kvarn.answers.chat.operation import start_chat
from kvarn.answers.choice import ChoiceDelta
from kvarn.answers.record import RequestRecord
from kvarn.answers.sessions import SessionHints
from kvarn.answers.turn import Turn
from kvarn.catalog.client_left import cancel_with_client
from kvarn.clock import SYSTEM_CLOCK
from kvarn.store.repositories.tool_calls import NewCall
from kvarn.tools.conversation import Exchange, TurnReader
from kvarn.tools.execution import ClaimedCalls, EarlierCalls, digest_of
from kvarn.tools.quotations import Quotations
from kvarn.tools.registry import OfferedTool, OfferedTools, ToolsContext
from kvarn.tools.types import ToolCall, ToolContext, ToolResult
from kvarn.wire.openai.chat.answer import FinishReason
from kvarn.wire.openai.chat.messages import Message
from kvarn.wire.openai.chat.request import AllowedToolsChoice, ChatCompletionRequest
from kvarn.wire.openai.errors import ApiError, ContextLengthError, invalid_request
from kvarn.wire.openai.usage import Usage, usage

_NO_MORE = 429
"""Status of a turn that a limit or a budget refuses: what has been done so far is the answer."""
_MIN_ANSWER_TOKENS = 256
_MIN_RESULT_BYTES = 256
_BYTES_PER_TOKEN = 2
"""A cautious guess: English text has some four."""


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A call is run, or waits for its turn."""

    offered: OfferedTool
    call: ToolCall
    approval_id: str | None = None


@dataclass(frozen=True, slots=True)
class CallEnded:
    begun: CallBegun
    result: ToolResult
    shown: str
    """The result as the model is shown it."""
    numbers: range
    """Numbers by which an answer may cite its texts."""
    round: int


@dataclass(frozen=True, slots=True)
class ApprovalAsked:
    """The client shall say whether a call may run."""

    offered: OfferedTool
    call: ToolCall
    round: int


LoopStep = ChoiceDelta | CallBegun | CallEnded | ApprovalAsked
ChatWith = Callable[[Sequence[Message]], Awaitable[ChatCompletionRequest]]
"""The chat of a request with these messages behind its own."""


@dataclass(slots=True, kw_only=True)
class ToolLoop:
    """One request's turns. Await `start`, then read `steps` to its end."""

    serving: ToolsContext
    record: RequestRecord
    offered: OfferedTools
    chat_with: ChatWith
    quotations: Quotations
    answer_id: str
    max_calls: int | None = None
    """The client's own limit."""
    max_output_tokens: int | None = None
    """Bound of all turns together, where the client set one."""
    earlier: EarlierCalls = field(default_factory=EarlierCalls)
    kept: bool = False
    """Results are kept for a gateway that may go on with the request."""
    keeps_approved: bool = False
    """Results of approved calls are kept for a request that approves them again."""
    chat: ChatRun | None = None
    """The first turn."""
    turns: list[Turn] = field(default_factory=list)
    before: Sequence[int] = ()
    """Tokens of the last turn, its prompt and its answer: the next prompt begins with them."""
    exchange: Exchange = field(default_factory=Exchange)
    began_s: float = field(default_factory=SYSTEM_CLOCK.now)
    num_calls: int = 0
    early: list[CallEnded] = field(default_factory=list)
    """Calls that the client approved: they have run before the first turn."""
    claimed: ClaimedCalls = field(default_factory=ClaimedCalls)

    async def run_approved(self, approved: Sequence[CallBegun]) -> None:
        """Run calls that the client approved; one that has run before gives the result that it gave then. Raises
        `ApiError`: 400, they are more than a request may have; 409, one has been used and has no result."""
        if len(approved) > self._call_limit:
            message = f"{len(approved)} calls are approved, and a request may have {self._call_limit}."
            raise invalid_request(message, "input", "too_many_calls")

        async def run() -> None:
            self.early += [step async for step in self._run(approved) if isinstance(step, CallEnded)]

        runner = self.serving.tools.runner
        new = [
            NewCall(each.offered.kind, each.call.name, digest_of(each.call.arguments), each.approval_id)
            for each in approved
        ]
        self.claimed = await runner.claim(self.record, self.answer_id, new)
        try:
            await cancel_with_client(run(), self.record.reply.client_left)
        finally:
            await runner.release(self.claimed)
        self.record.timeline.ask_again(len(approved))

    async def start(self) -> ChatRun:
        """Ask the model for the first time. Raises as `start_chat` does."""
        self.record.session = self.record.session.or_else(SessionHints(otherwise=self.record.id))
        try:
            self.chat = await self._ask(self._mode_after_limits() if self.early else "first")
        except ApiError as error:
            if self.early:
                error.message += self._what_of_approved()
            if self.early and not self.keeps_approved:  # clients' libraries send a request again by themselves
                error.headers["x-should-retry"] = "false"
            raise
        if (text := self.chat.model.served.text) is not None:
            self.quotations.markers = frozenset(text.tokenizer.markers)
        return self.chat

    def _what_of_approved(self) -> str:
        if self.keeps_approved:
            return " The calls that you approved have run; sent again, the request gets their results."
        return " The calls that you approved have run; they do not run again, and 'store' is false: no result is kept."

    @property
    def usage(self) -> Usage:
        """Tokens of all turns."""
        used = [turn.usage for turn in self.turns]
        return usage(
            sum(each.prompt_tokens for each in used),
            sum(each.completion_tokens for each in used),
            sum(each.cached_tokens for each in used),
            sum(each.reasoning_tokens for each in used),
        )

    async def steps(self) -> AsyncGenerator[LoopStep, None]:
        """Deltas of the model without the calls that are run here, and what becomes of these. The last delta has the
        finish reason. Closing this stops what runs."""
        chat = self.chat
        assert chat is not None
        for early in self.early:
            yield early.begun
            yield early
        while True:
            turn = TurnReader(self.offered.by_name, self.quotations.reader())
            async with aclosing(chat.deltas) as deltas:
                async for delta in deltas:
                    passed = turn.take(delta)
                    if passed.finish_reason is not None:
                        passed.warnings = [*passed.warnings, *self.exchange.warnings]
                    yield passed
            chat.turn.closing.close()  # what it holds of limits and replicas is not the next turn's
            if not turn.calls:
                self.serving.tools.runner.metrics.rounds.observe(len(self.turns))
                return
            ran: list[CallEnded] = []
            asked, runnable = self._split(turn.calls)
            async with aclosing(self._run(runnable)) as steps:
                async for step in steps:
                    if isinstance(step, CallEnded):
                        ran.append(step)
                    yield step
            for approval in asked:
                yield approval
            self.record.timeline.ask_again(len(ran))
            if asked or turn.others or self._is_used_up():
                reason: FinishReason = "tool_calls" if turn.others else "length" if self._is_used_up() else "stop"
                yield ChoiceDelta(0, finish_reason=reason, warnings=list(self.exchange.warnings))
                self.serving.tools.runner.metrics.rounds.observe(len(self.turns))
                return
            self.before = [*chat.prompt, *turn.token_ids]
            self.exchange.add_turn(turn, [(each.begun.call, each.shown) for each in ran])
            try:
                chat = await self._ask(self._mode_after_limits())
            except ApiError as error:
                if error.status != _NO_MORE:
                    raise
                self.exchange.warnings.append(f"The answer ends here: {error.message}")
                yield ChoiceDelta(0, finish_reason="length", warnings=list(self.exchange.warnings))
                return

    def _split(self, calls: Sequence[ToolCall]) -> tuple[list[ApprovalAsked], list[CallBegun]]:
        """Calls that wait for approval, and those that run: of these no more than the request may have."""
        asked: list[ApprovalAsked] = []
        runnable: list[CallBegun] = []
        for call in calls:
            offered = self.offered.by_name[call.name]
            if offered.tool.needs_approval:
                asked.append(ApprovalAsked(offered, call, len(self.turns)))
            elif self.num_calls + len(runnable) < self._call_limit:
                runnable.append(CallBegun(offered, call))
        return asked, runnable

    async def _run(self, calls: Sequence[CallBegun]) -> AsyncGenerator[CallBegun | CallEnded, None]:
        """Run calls, some at once; what becomes of them is told in their order."""
        self.num_calls += len(calls)
        config, places = self.serving.tools.config, asyncio.Semaphore(self.serving.tools.config.max_parallel)
        max_bytes = self._result_bytes(len(calls))

        async def run(begun: CallBegun) -> ToolResult:
            approval_id = begun.approval_id
            known = self.earlier.take(begun.call) if approval_id is None else self.claimed.ended.get(approval_id)
            if known is not None:
                return known
            async with places:
                until_s = min(self._ends_s, SYSTEM_CLOCK.now() + config.call_timeout_s)
                context = ToolContext(self.serving, self.record, until_s, max_bytes)
                runner, offered = self.serving.tools.runner, begun.offered
                noted = None if approval_id is None else self.claimed.noted.pop(approval_id)
                kept = self.kept if approval_id is None else self.keeps_approved
                called = context, offered.kind, offered.tool, begun.call, self.answer_id
                return await runner.run(*called, kept=kept, call_id=noted)

        tasks = [asyncio.create_task(run(begun)) for begun in calls]
        try:
            for begun, task in zip(calls, tasks, strict=True):
                yield begun
                result = await task
                shown, numbers = self.quotations.show(result, begun.call.name, max_bytes)
                self.exchange.warnings += [each for each in result.metadata if each not in self.exchange.warnings]
                yield CallEnded(begun, result, shown, numbers, len(self.turns))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, mode: str) -> ChatRun:
        """Begin the next turn. Results that the context has no room for are left out, and the model is told."""
        try:
            return await self._begin(mode)
        except ContextLengthError:
            if not self.exchange.drop_results():
                raise
            self.exchange.warnings.append("Results of tools were left out: the model's context has no room for them.")
            return await self._begin("none")

    async def _begin(self, mode: str) -> ChatRun:
        request = await self.chat_with(self.exchange.messages)
        request = _in_mode(request, mode)
        if self.max_output_tokens is not None:
            left = max(1, self.max_output_tokens - self.usage.completion_tokens)
            request = request.model_copy(update={"max_completion_tokens": left})
        chat = await start_chat(self.serving, self.record, request, before=self.before)
        self.turns.append(chat.turn)
        return chat

    def _mode_after_limits(self) -> str:
        limit = self._reached_limit()
        if limit is None:
            return "auto"
        name, why = limit
        self.serving.tools.runner.metrics.limited.labels(name).inc()
        self.exchange.warnings.append(f"The model was asked to answer without tools: {why}.")
        return "none"

    def _reached_limit(self) -> tuple[str, str] | None:
        config = self.serving.tools.config
        if len(self.turns) >= config.max_rounds:
            return "rounds", f"it has been asked {config.max_rounds} times (tools.max_rounds)"
        if self.num_calls >= self._call_limit:
            return "calls", f"the request has had its {self._call_limit} calls"
        if SYSTEM_CLOCK.now() >= self._ends_s:
            return "time", f"the request's time for tools is over, {config.timeout_s:g} s (tools.timeout_s)"
        if config.max_tokens is not None and self.usage.total_tokens >= config.max_tokens:
            return "tokens", f"the request has used {config.max_tokens} tokens (tools.max_tokens)"
        return None

    @property
    def _call_limit(self) -> int:
        most = self.serving.tools.config.max_calls
        return most if self.max_calls is None else min(most, self.max_calls)

    @property
    def _ends_s(self) -> float:
        return self.began_s + self.serving.tools.config.timeout_s

    def _is_used_up(self) -> bool:
        return self.max_output_tokens is not None and self.usage.completion_tokens >= self.max_output_tokens

    def _result_bytes(self, calls: int) -> int:
        """Bytes that each of some results may have: together they fit into what is left of the model's context."""
        most = self.serving.tools.config.max_result_bytes
        if not self.turns or self.chat is None or not (context := self.chat.model.card.max_context_length):
            return most
        last = self.turns[-1].usage
        left = context - last.prompt_tokens - last.completion_tokens - min(_MIN_ANSWER_TOKENS, context // 4)
        return min(most, max(_MIN_RESULT_BYTES, _BYTES_PER_TOKEN * left // max(1, calls)))


def _in_mode(request: ChatCompletionRequest, mode: str) -> ChatCompletionRequest:
    """`first`: as the client asked. Later a call is forced no more; in `none` there are no tools."""
    choice = request.tool_choice
    if mode == "first" or (choice is None and mode == "auto"):
        return request
    if mode == "none" or choice == "none":
        return request.model_copy(update={"tool_choice": "none"})
    if isinstance(choice, AllowedToolsChoice):
        allowed = choice.allowed_tools.model_copy(update={"mode": "auto"})
        return request.model_copy(update={"tool_choice": choice.model_copy(update={"allowed_tools": allowed})})
    return request.model_copy(update={"tool_choice": "auto"})
