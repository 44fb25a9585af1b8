"""Making a response: the answer of a chat in the form of `/v1/responses`, and stored."""

from __future__ import annotations

from msgspec.structs import replace

from kvarn.answers.chat.operation import start_chat
from kvarn.answers.record import RequestRecord
from kvarn.answers.sessions import SessionHints
from kvarn.answers.tiers import tier_of
from kvarn.responses.background_runs import ResponsesContext
from kvarn.responses.ending import ResponseEnding
from kvarn.responses.fitting import chat_of, fitting_chat
from kvarn.responses.hosted import Approvals
from kvarn.responses.hosted_run import open_tools, served_tools, start_with_tools
from kvarn.responses.request import NO_HOSTED, grammar_warnings, in_response_terms, new_response
from kvarn.responses.run import ResponseRun
from kvarn.responses.turns import ResponseInput, open_input, read_input
from kvarn.responses.writer import ResponseWriter
from kvarn.wire.openai.errors import ApiError
from kvarn.wire.openai.responses.answer import InputTokens, response_usage
from kvarn.wire.openai.responses.request import ResponseRequest, TokenCountRequest


async def start_response(serving: ResponsesContext, record: RequestRecord, request: ResponseRequest) -> ResponseRun:
    """Read what a response goes on from, check it, and take it in."""
    await _check_quota(serving, record, request)
    request = served_tools(serving, record, request)
    response_id = f"resp_{record.id}"
    response_input = await open_input(serving, record, request, response_id)
    writer = ResponseWriter(new_response(request, response_id, int(serving.store.now())), len(response_input.items))
    ending = ResponseEnding(
        serving.responses, record.principal.owner, writer, response_input.items, response_input.lock, record=record
    )
    return await run_response(serving, record, request, response_input, ending)


async def run_response(
    serving: ResponsesContext,
    record: RequestRecord,
    request: ResponseRequest,
    response_input: ResponseInput,
    ending: ResponseEnding,
    seed: int | None = None,
) -> ResponseRun:
    """Take in a response whose input was read. The input's lock is released when the record is closed, or on refusal.
    Raises as `start_response` does."""
    _name_session(record, request, response_input)
    record.reply.warnings += [each for each in grammar_warnings(request) if each not in record.reply.warnings]
    try:
        if request.hosted_tools:
            run = await start_with_tools(serving, record, request, response_input, ending, seed)
        else:
            Approvals(response_input.context).approved(NO_HOSTED)  # without tools nothing that is approved can run
            chat = await chat_of(serving, record, request, response_input.context, seed)
            run = ResponseRun.of_chat(await start_chat(serving, record, chat), ending, serving.store.now)
    except BaseException as error:
        await serving.responses.unlock(response_input.lock)
        if isinstance(error, ApiError):
            raise in_response_terms(error) from None
        raise
    record.holdings.push_async_callback(serving.responses.unlock, response_input.lock)
    run.include = request.include or ()
    defaults = run.chat.model.sampling_defaults
    ending.writer.response = replace(
        ending.writer.response,
        model=run.chat.model.public_name,  # another one, or another tier, may have been found for it
        service_tier=tier_of(run.chat.turn.priority),
        temperature=defaults.temperature if request.temperature is None else request.temperature,
        top_p=defaults.top_p if request.top_p is None else request.top_p,
    )
    ending.usage = lambda: response_usage(run.usage)
    return run


def _name_session(record: RequestRecord, request: ResponseRequest, response_input: ResponseInput) -> None:
    record.choice.session = request.conversation_id or record.choice.session
    if request.stored:  # what goes on from it names it, or goes on from what does
        chain = response_input.chain or f"resp_{record.id}"
        record.session = record.session.or_else(SessionHints(otherwise=chain))


async def count_input_tokens(
    serving: ResponsesContext, record: RequestRecord, request: TokenCountRequest
) -> InputTokens:
    name = request.model or next(iter(serving.models)).name
    model = serving.catalog.ready(record, name, "generate")
    response_input = await read_input(serving, record, request)
    offered = await open_tools(serving, record, request)
    chat = await fitting_chat(serving, record, request, response_input.context, model, hosted=offered)
    return InputTokens(
        input_tokens=await serving.steps.generator_of(model).count_chat_tokens(serving, record, chat, model)
    )


async def _check_quota(serving: ResponsesContext, record: RequestRecord, request: ResponseRequest) -> None:
    if request.conversation_id is not None:  # it goes on, whether or not the response itself is stored
        instead = "ask without 'conversation', and with 'store': false"
        await serving.storage_quota.check(record, "conversation", instead)
    elif request.stored:
        await serving.storage_quota.check(record, "store", "send 'store': false")
