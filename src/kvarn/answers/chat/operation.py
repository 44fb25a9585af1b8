"""Answering a chat."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from kvarn.answers.answer_check import only_valid_answers
from kvarn.answers.chat.answer import ChatRun
from kvarn.answers.chat.prompt import opening_of, phase_after_prompt, render_chat
from kvarn.answers.chat.run import chat_run, check_messages
from kvarn.answers.chat.tool_calls import ToolCallReader
from kvarn.answers.choice import ChoiceDelta
from kvarn.answers.context import ServingContext
from kvarn.answers.generation import check_token_ids, generate, make_choices, make_submit
from kvarn.answers.grammars import grammar_of_chat
from kvarn.answers.held_bytes import HeldBytes
from kvarn.answers.moderation.checks import chat_texts
from kvarn.answers.work import RequestRecord
from kvarn.catalog.model_choice import BYTES_PER_TOKEN, NO_FEATURES
from kvarn.catalog.models import ModelText, ReadyModel
from kvarn.external.chat import start_external_chat
from kvarn.routing.model_choice import RequestFeatures
from kvarn.text.reasoning.splitter import ReasoningSplitter
from kvarn.text.sampling import chat_sampling, check_sampling
from kvarn.wire.openai.chat.request import ChatCompletionRequest
from kvarn.wire.openai.errors import invalid_request


async def start_chat(
    serving: ServingContext, record: RequestRecord, request: ChatCompletionRequest, context: Sequence[int] = ()
) -> ChatRun:
    """Check a chat, render and tokenize its prompt, and take it in. `context`: tokens that stand before the prompt.

    Raises:
        ApiError: It cannot be answered as asked, or not now; or it cannot be stored as asked.
        ChatTemplateError: The model's template refuses the messages.
    """
    if request.store:
        await serving.storage_quota.check(record, "store", "send 'store': false")
    route, user = serving.routes.find(request.model), request.safety_identifier or request.user
    features = NO_FEATURES if route is None else chat_features(request)
    record.session = record.session or request.prompt_cache_key or ""
    seed = serving.shadows.seed_of(route, record, request.seed)
    asked = request if seed == request.seed else request.model_copy(update={"seed": seed})
    start = partial(_start, serving, record, asked, context)
    run = await serving.with_model(record, request.model, start, features, user)
    copied = asked.model_copy(update={"store": None, "service_tier": None, "priority": 0})
    return serving.shadows.watch(
        serving,
        record,
        run,
        lambda there, own, name: start_chat(there, own, copied.model_copy(update={"model": name}), context),
    )


def chat_features(request: ChatCompletionRequest) -> RequestFeatures:
    """What of a chat decides which model answers it."""
    written = sum(len(text.encode()) for text in chat_texts(request.plain_messages, request.active_tools))
    return RequestFeatures(
        prompt_tokens=math.ceil(written / BYTES_PER_TOKEN),
        max_output_tokens=request.max_completion_tokens or request.max_tokens,
        tools=request.tool_use is not None,
        reasoning_effort=request.reasoning_effort,
    )


async def _start(
    serving: ServingContext,
    record: RequestRecord,
    request: ChatCompletionRequest,
    context: Sequence[int],
    model: ReadyModel,
) -> ChatRun:
    if model.external is not None:
        if context:
            raise invalid_request("Another server runs this model: it takes no token ids before a chat.", "context")
        return await start_external_chat(serving, record, request, model, model.external)
    text = model.text
    checked = await serving.run(
        record, lambda: check_sampling(request, text.tokenizer, serving.limits, text.sampling_defaults)
    )
    check_token_ids(list(context), model, "context")
    prompt = [*context, *await render_chat(serving, record, request, model)]
    opening = opening_of(request, model)
    kept, grammar = await grammar_of_chat(serving, record, request, model, prompt) or (None, None)
    sampling = chat_sampling(
        request,
        checked,
        serving.limits,
        prompt_tokens=len(prompt),
        context_length=model.card.max_context_length,
        draw_seed=model.served.draw_seed,
    )
    work = await serving.begin(
        record,
        model,
        prompt_tokens=len(prompt),
        prompt=prompt,
        cache_salt=request.cache_salt,
        max_output_tokens=sampling.max_tokens * sampling.n,
        sequences=sampling.n,
        output_bounded=request.max_tokens is not None or request.max_completion_tokens is not None,
        priority=request.priority,
        service_tier=request.service_tier,
    )
    if context:
        await serving.moderation.check_input(work, lambda: [text.tokenizer.decode(context)], "context")
    await check_messages(serving, request, work)
    choices = make_choices(
        request,
        sampling,
        model,
        serving.limits,
        watch=partial(serving.moderation.watch, work),
        continued=prompt if request.continue_final_message or opening else (),
        shown=text.tokenizer.ids_of(_markers(request, text)),
        splitter=_splitters(request, model, prompt),
    )
    for choice in choices:
        choice.transform = _transform(request, model, opening)
    submit = make_submit(record.id, prompt, sampling, work, request.cache_salt, grammar)
    deltas = generate(model, submit, choices, work, HeldBytes(serving.held, record), serving.metrics)
    if kept is not None:
        deltas = only_valid_answers(deltas, kept, serving.grammars, work, serving.metrics)
    return chat_run(serving, request, model, work, deltas, prompt)


def _markers(request: ChatCompletionRequest, text: ModelText) -> list[str]:
    """Special tokens that the answer's parsers must see."""
    calls = () if request.tool_use is None else text.tool_format.markers
    return [*calls, *(() if text.reasoning_format is None else text.reasoning_format.markers)]


def _splitters(
    request: ChatCompletionRequest, model: ReadyModel, prompt: list[int]
) -> Callable[[], ReasoningSplitter | None]:
    """Makes who tells reasoning from content, for each choice."""
    kind = model.text.reasoning_format
    if kind is None:
        return lambda: None
    return partial(kind.splitter, phase_after_prompt(request, model, prompt))


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
