"""The life of an answer, for every dialect, batches and copies of requests. Read from top to bottom.

    resolve    the version of a model, its adapter, its route                  answers/catalog, model_routes
    prompt     check the request; template and tokenizer; grammar              a `Generator`: engines, other servers
    stages     response cache, arrivals, budgets, limits, replica, admission,  stages/; one may refuse, or answer
               ledger
    moderate   the prompt                                                      moderation/
    generate   deltas; failover to other replicas inside                       a `Generator`
    observe    rollout samples, copies of the request                          `Observer`s, in order
    settle     stages in reverse, once, however it ended                       `Turn.closing`, by `RequestRecord.close`

What becomes of it: *streamed* (a model generates), *answered* (a stage had the answer), *degraded* (another model of
the fallbacks answers), *refused* (an `ApiError`). Each attempt that is taken in is a `Turn` of the request's record.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any, TypeVar

from kvarn.answers.choice import ChoiceDelta
from kvarn.answers.context import ServingContext
from kvarn.answers.model_routes import Attempts
from kvarn.answers.observer import observed, tell_not_begun
from kvarn.answers.question import Question
from kvarn.answers.record import RequestRecord
from kvarn.answers.tiers import priority_of, tier_of
from kvarn.answers.turn import Deltas, Prompt, TokenUsage, Turn
from kvarn.catalog.client_left import ClientLeft, until_client_leaves
from kvarn.catalog.models import ReadyModel
from kvarn.store.ledger import BATCH_TIER

RunT = TypeVar("RunT")


async def answer(serving: ServingContext, record: RequestRecord, question: Question[Any, RunT]) -> RunT:
    """Begin an answer with the model that the question names; where that cannot begin, with the next of its fallbacks.

    Raises:
        ApiError: Refused: it cannot be answered as asked, or not now.
        Exception: Whatever ended the answer before its beginning.
    """
    record.end_user = question.request.end_user or ""
    attempts = Attempts(serving.catalog.routes, record, question)
    if record.choice.route is not None and any(each.needs_seed(record) for each in serving.steps.observers):
        record.seed_drawn = record.seed_drawn or question.request.seed is None
        question = question.with_seed()
    while True:
        try:
            model = await serving.catalog.wait_for(record, attempts.model, "generate", question.request.priority)
            record.timeline.mark("resolved")
            if not attempts.may_fall_back:
                return await _begin(serving, record, question, model)
            with serving.catalog.routes.permitted(attempts.model):
                return await _begin(serving, record, question, model, await_first=True)
        except Exception as error:
            tell_not_begun(serving.steps.observers, record, attempts.model, error)
            attempts.fall_back(error)


async def _begin(
    serving: ServingContext,
    record: RequestRecord,
    question: Question[Any, RunT],
    model: ReadyModel,
    *,
    await_first: bool = False,
) -> RunT:
    """Begin an answer with this very model; `await_first`: it has begun when this returns."""
    prompt = await question.prompt(serving, record, model)
    record.timeline.mark("prompted", {"tokens": prompt.tokens})
    turn = await take_in(serving, record, prompt)
    await serving.moderation.check_prompt(turn, prompt)
    record.timeline.mark("moderated")
    deltas = prompt.generate(turn) if turn.answer is None else _counted(turn, turn.answer)
    if await_first:
        deltas = await begun(deltas, record.reply.client_left)
    return question.run(serving, turn, prompt, observed(serving.steps.observers, turn, question, deltas))


async def take_in(serving: ServingContext, record: RequestRecord, prompt: Prompt) -> Turn:
    """Begin a turn, which is settled when the record is closed: every stage takes it, in order, or one refuses or
    answers it. Raises `ApiError`, or `DegradedError`: another model shall answer."""
    model, own, deferred = prompt.model, record.principal.priority, record.deferred
    best = own if deferred is None else max(own, deferred.priority)
    priority, number = priority_of(prompt.service_tier, prompt.priority, best), len(record.turns)
    engine_id = f"{record.id}.{number}" if number else record.id
    turn = Turn(
        id=f"use_{engine_id}",
        engine_id=engine_id,
        record=record,
        model=model.name,
        model_version=model.version,
        adapter=model.adapter if isinstance(model, ReadyModel) else "",
        replica=model.replica_name,
        prompt=prompt,
        prompt_tokens=prompt.tokens,
        max_output_tokens=prompt.max_output_tokens,
        output_bounded=prompt.output_bounded,
        priority=priority,
        service_tier=tier_of(priority) if deferred is None else BATCH_TIER,
        sequences=prompt.sequences,
        usage=TokenUsage(pending=prompt.prompts, timeline=record.timeline),
    )
    try:
        for stage in serving.steps.stages:
            turn.answer = await stage.enter(turn)
            record.timeline.mark(f"stage.{stage.name}")
            if turn.answer is not None:
                break
    except BaseException:
        turn.give_up()
        raise
    record.holdings.callback(turn.closing.close)
    record.turns.append(turn)
    return turn


async def _counted(turn: Turn, deltas: Deltas) -> Deltas:
    """A stage's answer, counted to its turn like one that a model generates: the turn is settled by what was read."""
    usage, running = turn.usage, turn.sequences
    usage.count(prompt=turn.prompt_tokens, cached=turn.prompt_tokens)
    async with aclosing(deltas):
        try:
            async for delta in deltas:
                usage.count(completion=len(delta.token_ids), reasoning=delta.reasoning_tokens)
                if delta.finish_reason is not None:
                    usage.finish_reasons.append(delta.finish_reason)
                    running -= 1
                if not running:
                    usage.pending = 0
                    turn.record.timeline.mark("generated", {"tokens": usage.completion_tokens})
                yield delta
        except Exception:
            usage.failed = True
            raise


async def begun(deltas: Deltas, client_left: ClientLeft) -> Deltas:
    """Wait for the first delta; returns all of them. Raises `ClientDisconnect`, and what ended the answer before its
    beginning."""
    first = asyncio.ensure_future(anext(deltas))
    try:
        delta = await until_client_leaves(first, client_left)
    except BaseException:
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await deltas.aclose()
        raise
    return _rest(delta, deltas)


async def _rest(first: ChoiceDelta, deltas: Deltas) -> Deltas:
    async with aclosing(deltas):
        yield first
        async for delta in deltas:
            yield delta
