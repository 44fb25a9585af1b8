"""Chats: the question as the lifecycle asks it, and its prompt for an engine of this server."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from msgspec import UNSET

from kvarn.answers.chat.answer import ChatRun
from kvarn.answers.chat.continuation import continue_tokens
from kvarn.answers.chat.prompt import opening_of, phase_after_prompt, render_chat
from kvarn.answers.chat.stored import keep_completion
from kvarn.answers.chat.tool_calls import ToolCallReader
from kvarn.answers.choice import ChoiceDelta
from kvarn.answers.context import ServingContext
from kvarn.answers.generation import check_token_ids, generate, make_choices, make_submit
from kvarn.answers.held_bytes import HeldBytes
from kvarn.answers.lifecycle import answer
from kvarn.answers.model_routes import BYTES_PER_TOKEN
from kvarn.answers.moderation.checks import chat_texts
from kvarn.answers.question import Question
from kvarn.answers.record import RequestRecord
from kvarn.answers.sessions import hints_of_chat, take_hints
from kvarn.answers.structured.answer_check import grammar_of_chat, only_valid_answers
from kvarn.answers.tiers import tier_of
from kvarn.answers.turn import AnswerIdentity, Deltas, GeneratedPrompt, Moderated, Turn
from kvarn.catalog.models import ReadyModel
from kvarn.clock import SYSTEM_CLOCK
from kvarn.routing.model_choice import RequestFeatures
from kvarn.text.reasoning.splitter import ReasoningSplitter
from kvarn.text.sampling import chat_sampling, check_sampling
from kvarn.wire.openai.chat.request import ChatCompletionRequest
from kvarn.wire.openai.tokenize import RenderedChat
from kvarn.wire.sampling import SamplingParams

if TYPE_CHECKING:
    from kvarn.answers.context import ServingContext


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt(GeneratedPrompt):
    shown: list[int]  # its tokens; empty where another server tokenizes it


@dataclass(frozen=True, slots=True)
class ChatQuestion(Question[ChatCompletionRequest, ChatRun]):
    """A chat; `context`: tokens that stand before its prompt. `before`: prompt and answer of the turn before it, which
    its own prompt is expected to begin with."""

    context: Sequence[int] = ()
    before: Sequence[int] = ()
    NOT_COPIED = {"store": None, "service_tier": None, "priority": 0}  # noqa: RUF012

    def features(self, record: RequestRecord) -> RequestFeatures:
        request = self.request
        written = sum(len(text.encode()) for text in chat_texts(request.plain_messages, request.active_tools))
        return RequestFeatures(
            prompt_tokens=math.ceil(written / BYTES_PER_TOKEN),
            max_output_tokens=request.max_completion_tokens or request.max_tokens,
            tools=request.tool_use is not None,
            reasoning_effort=request.reasoning_effort,
        )

    async def prompt(self, serving: ServingContext, record: RequestRecord, model: ReadyModel) -> ChatPrompt:
        return await serving.steps.generator_of(model).prompt_chat(serving, record, self, model)

    def run(self, serving: ServingContext, turn: Turn, prompt: GeneratedPrompt, deltas: Deltas) -> ChatRun:
        record, request, model = turn.record, self.request, prompt.model
        assert isinstance(prompt, ChatPrompt) and isinstance(model, ReadyModel)
        gathered, final = HeldBytes(serving.held, record), request.plain_messages[-1]["content"] if request.echo else ""
        keep = None
        if request.store:
            keep = lambda answer: keep_completion(serving, record, request, answer, gathered.size // 2)  # noqa: E731
        return ChatRun(
            id=f"chatcmpl-{record.id}",
            created=int(SYSTEM_CLOCK.time()),
            request=request,
            model=model,
            fingerprint=model.fingerprint,
            prompt=prompt.shown,
            deltas=deltas,
            choices=turn.sequences,
            turn=turn,
            service_tier=UNSET if request.service_tier is None else tier_of(turn.priority),
            opening=final if isinstance(final, str) else "\n".join(part["text"] for part in final or []),
            legacy=request.tool_use is not None and request.tool_use.legacy,
            held=gathered,
            store=keep,
        )


async def start_chat(
    serving: ServingContext,
    record: RequestRecord,
    request: ChatCompletionRequest,
    context: Sequence[int] = (),
    before: Sequence[int] = (),
) -> ChatRun:
    """Begin the answer to a chat. `context`: tokens that stand before the prompt; `before`: see `ChatQuestion`. Raises
    `ApiError`, or `ChatTemplateError`: the model's template refuses the messages."""
    if request.store:
        await serving.storage_quota.check(record, "store", "send 'store': false")
    take_hints(record, hints_of_chat(request))
    record.metadata = request.metadata
    return await answer(serving, record, ChatQuestion(request, context, before))


async def engine_chat(
    serving: ServingContext, record: RequestRecord, question: ChatQuestion, model: ReadyModel
) -> ChatPrompt:
    """The prompt of a chat for an engine of this server. Raises as `start_chat` does."""
    request, context, text = question.request, question.context, model.text
    prompt, fitted = await _checked_prompt(serving, record, request, model, context, question.before)
    kept, grammar = await grammar_of_chat(serving, record, request, model, prompt) or (None, None)
    sampling = fitted(model.served.draw_seed)
    markers = () if request.tool_use is None else text.tool_format.markers
    reasoning = text.reasoning_format

    def start(turn: Turn) -> Deltas:
        opening = opening_of(request, model)
        splitter: Callable[[], ReasoningSplitter | None] = lambda: None  # noqa: E731
        if reasoning is not None:
            splitter = partial(reasoning.splitter, phase_after_prompt(request, model, prompt))
        choices = make_choices(
            request,
            sampling,
            model,
            serving.gateway_config,
            moderation=partial(serving.moderation.output_moderation, turn),
            continued=prompt if request.continue_final_message or opening else (),
            shown=text.tokenizer.ids_of([*markers, *(() if reasoning is None else reasoning.markers)]),
            splitter=splitter,
        )
        for choice in choices:
            choice.transform = _transform(request, model, opening)
        submit = make_submit(turn, prompt, sampling, grammar)
        deltas = generate(model, submit, choices, turn, HeldBytes(serving.held, record), serving.metrics)
        if kept is None:
            return deltas
        return only_valid_answers(deltas, kept, serving.grammars, turn, serving.metrics)

    moderated: list[Moderated] = [("messages", partial(chat_texts, request.plain_messages, request.active_tools))]
    if context:
        moderated.insert(0, ("context", lambda: [text.tokenizer.decode(context)]))
    return ChatPrompt(
        model=model,
        tokens=len(prompt),
        token_ids=prompt,
        shown=prompt,
        cache_salt=request.cache_salt,
        max_output_tokens=sampling.max_tokens * sampling.n,
        sequences=sampling.n,
        output_bounded=request.max_tokens is not None or request.max_completion_tokens is not None,
        priority=request.priority,
        service_tier=request.service_tier,
        identity=AnswerIdentity(request, [sampling], context),
        moderated=moderated,
        logged=lambda: {"messages": request.plain_messages},
        generate=start,
    )


async def render_only(serving: ServingContext, record: RequestRecord, request: ChatCompletionRequest) -> RenderedChat:
    """Check a chat as if it were answered, and show what its engine would get. Raises as `start_chat` does."""
    model = serving.catalog.ready(record, request.model, "generate")
    token_ids, fitted = await _checked_prompt(serving, record, request, model)
    return RenderedChat(
        request_id=f"chatcmpl-{record.id}",
        model=model.public_name,
        token_ids=token_ids,
        sampling_params=fitted(lambda: 0),
        stream=bool(request.stream),
        priority=request.priority,
        cache_salt=request.cache_salt,
    )


async def _checked_prompt(
    serving: ServingContext,
    record: RequestRecord,
    request: ChatCompletionRequest,
    model: ReadyModel,
    context: Sequence[int] = (),
    before: Sequence[int] = (),
) -> tuple[list[int], Callable[[Callable[[], int]], SamplingParams]]:
    """The prompt, and a function that fits the sampling parameters to it, given one that draws a seed."""
    text, gateway_config = model.text, serving.gateway_config
    checked = await serving.run(
        record, lambda: check_sampling(request, text.tokenizer, gateway_config, text.sampling_defaults)
    )
    if context:
        check_token_ids(list(context), model, "context")
    prompt = [*context, *await render_chat(serving, record, request, model)]
    if before:
        prompt = continue_tokens(before, prompt, partial(text.tokenizer.decode, skip_special_tokens=False))
    longest = model.card.max_context_length
    return prompt, lambda draw_seed: chat_sampling(
        request, checked, gateway_config, prompt_tokens=len(prompt), context_length=longest, draw_seed=draw_seed
    )


def _transform(request: ChatCompletionRequest, model: ReadyModel, opening: str) -> Callable[[ChoiceDelta], None] | None:
    """Adds tool calls and log-probabilities to the deltas of a choice; see `Choice.transform`."""
    use, text = request.tool_use, model.text
    if use is None and not request.logprobs:
        return None
    tools = None
    if use is not None:
        schemas = {function.name: function.parameters or {} for function in use.functions}
        parser = text.tool_format.make_parser(use.names, opening=opening, max_calls=use.max_calls, parameters=schemas)
        tools = ToolCallReader(use, parser)

    def transform(delta: ChoiceDelta) -> None:
        if tools is not None:
            tools.read(delta)
        if request.logprobs:
            delta.logprobs = text.logprobs.chat(delta.positions, request.top_logprobs or 0)

    return transform
