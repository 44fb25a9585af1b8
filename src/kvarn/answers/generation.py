"""An answer's way through the engine: from a prompt's tokens to the deltas of its choices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from kvarn.answers.choice import Choice, ChoiceDelta
from kvarn.answers.held_bytes import HeldBytes
from kvarn.answers.moderation.output_moderation import OutputModeration
from kvarn.answers.sessions import calls_tools, turn_of
from kvarn.answers.turn import Deltas, Turn, salt_of
from kvarn.catalog.failover import ResumableRequest
from kvarn.catalog.models import ReadyModel
from kvarn.catalog.timeouts import NO_TIMEOUTS, StageTimeoutError, StageTimer, timeouts_of
from kvarn.clock import SYSTEM_CLOCK
from kvarn.config.gateway import GatewayConfig
from kvarn.observe.metrics import GatewayMetrics, GenerationObserver
from kvarn.replica.client.protocol import ReplicaLostError, RequestRefusedError
from kvarn.text.detokenizer import IncrementalDetokenizer
from kvarn.text.reasoning.splitter import ReasoningSplitter
from kvarn.text.sampling import stop_strings
from kvarn.text.stop_strings import StopMatcher, StopStrings
from kvarn.wire.messages import Grammar, Submit, TokenDelta
from kvarn.wire.openai.chat.request import ChatCompletionRequest
from kvarn.wire.openai.completions import CompletionRequest
from kvarn.wire.openai.errors import ApiError, invalid_request
from kvarn.wire.sampling import SamplingParams
from kvarn.wire.sessions import SessionEvent, SessionNews


def check_token_ids(token_ids: list[int], model: ReadyModel, param: str) -> None:
    """Refuse token ids that the model has not. Raises `ApiError`: 400 that names the field."""
    if not model.card.has_tokens(token_ids):
        raise invalid_request(f"{param!r} holds token ids outside 0 to {model.card.vocab_size - 1}.", param)


def make_choices(
    request: ChatCompletionRequest | CompletionRequest,
    sampling: SamplingParams,
    model: ReadyModel,
    gateway_config: GatewayConfig,
    *,
    moderation: Callable[[], OutputModeration | None],
    first_index: int = 0,
    continued: Sequence[int] = (),
    shown: frozenset[int] = frozenset(),
    splitter: Callable[[], ReasoningSplitter | None] = lambda: None,
) -> list[Choice]:
    """The `n` choices of one prompt, numbered from `first_index`. `continued`: the prompt's tokens where the answer's
    text goes on from the prompt's. `shown`: special tokens that are part of the text all the same. `moderation` and
    `splitter` make one for each choice."""
    strings = stop_strings(request, gateway_config)
    stops = StopStrings(strings) if strings else None
    return [
        Choice(
            first_index + index,
            IncrementalDetokenizer(
                model.text.tokenizer, skip_special_tokens=request.skip_special_tokens, after=continued, shown=shown
            ),
            None if stops is None else StopMatcher(stops, include_stop=request.include_stop_str_in_output),
            sampling.min_tokens,
            frozenset(request.stop_token_ids or ()),
            splitter=splitter(),
            with_reasoning=not isinstance(request, ChatCompletionRequest) or request.include_reasoning,
            prompt_only=isinstance(request, CompletionRequest) and request.max_tokens == 0,
            moderation=moderation(),
        )
        for index in range(sampling.n)
    ]


def make_submit(
    turn: Turn, prompt: list[int], sampling: SamplingParams, grammar: Grammar | None = None, number: int | None = None
) -> Submit:
    """The engine's request of a turn, or that of its prompt of this number. The tenant and its secret salt come from
    the server, never from the client: a tenant's cached prompts cannot be found, or their presence timed, by another.
    """
    principal, slo = turn.record.principal, turn.slo
    assert turn.prompt is not None, "a turn that generates has a prompt"
    return Submit(
        request_id=turn.engine_id if number is None else f"{turn.engine_id}-{number}",
        prompt_token_ids=prompt,
        sampling=sampling,
        tenant=principal.organization_id,
        weight=principal.weight,
        priority=turn.priority,
        adapter=turn.adapter,
        cache_salt=salt_of(principal, turn.prompt.cache_salt),
        grammar=grammar,
        ttft_left_s=None if slo is None else turn.record.timeline.received_s + slo.ttft_target_s - SYSTEM_CLOCK.now(),
        tpot_target_s=None if slo is None else slo.tpot_target_s,
        session=turn_of(turn.record),
    )


async def generate(
    model: ReadyModel, submit: Submit, choices: Sequence[Choice], turn: Turn, held: HeldBytes, metrics: GatewayMetrics
) -> Deltas:
    """Run a prompt; yields what each step adds to a choice. A choice ends with a stop string, by its transform or by
    moderation, whatever the engine still sends for it; when all have ended, the request is aborted by closing the
    replica's generator. `held` counts what the engine has written and the client has not read yet.

    Raises:
        RequestRefusedError: The engine refused or gave up the request.
        ReplicaLostError: The engine is not ready, died or fell silent, and no other went on.
        StageTimeoutError: A stage took longer than the model's `timeouts`.
        ApiError: The answer cannot be moderated now, or there is no memory left for unread tokens.
    """
    usage, running, timeline, sent_s = turn.usage, len(choices), turn.record.timeline, 0.0
    exemplar = None if timeline.trace is None else timeline.trace.exemplar
    observer = metrics.generation(model.name, timeline.received_s, exemplar)
    request = _request(model, submit, turn, held, observer)
    timeouts = timeouts_of(model.served.config.timeouts, external=False)
    timer = None if timeouts == NO_TIMEOUTS else StageTimer(timeouts)
    usage.count(prompt=len(submit.prompt_token_ids))
    tokens: AsyncGenerator[TokenDelta, None] | None = None
    try:
        while running:
            try:
                if tokens is None:
                    tokens, sent_s = request.open(), timeline.mark("sent")
                new = await (anext(tokens) if timer is None else timer.wait(anext(tokens)))
            except StopAsyncIteration:
                return
            except (ReplicaLostError, RequestRefusedError) as error:
                tokens = None
                await (request.move(error) if timer is None else timer.wait(request.move(error)))
                continue
            new, choice = request.take(new), choices[new.index]
            if new.token_ids and timer is not None:
                timer.begun = True
            if new.events is not None:
                timeline.add_engine(new.events, sent_s)
            if choice.ended:
                continue
            if new.token_ids:
                observer.delta(new.index, len(new.token_ids))
            delta = choice.add(new)
            usage.count(cached=new.cached_tokens, completion=len(delta.token_ids), reasoning=delta.reasoning_tokens)
            if choice.moderation is not None:
                shown = await choice.moderation.look(delta)
                if shown is None:
                    continue
                delta = shown
            if choice.transform is not None:
                choice.transform(delta)
            if delta.finish_reason is not None:
                choice.ended = True
                usage.finish_reasons.append(delta.finish_reason)
                running -= 1
                if not running:  # counted before the client hears of it
                    usage.pending -= 1
                    timeline.mark("generated", {"tokens": usage.completion_tokens})
                    observer.finished()
            yield delta
    except (RequestRefusedError, ReplicaLostError, StageTimeoutError, ApiError) as error:
        usage.failed = True
        usage.refused = usage.refused or isinstance(error, RequestRefusedError)
        observer.failed()
        raise
    finally:
        if tokens is not None:
            await tokens.aclose()
        _tell_tool_calls(model, submit, turn)  # after the engine was told of the end
        request.end()


def _tell_tool_calls(model: ReadyModel, submit: Submit, turn: Turn) -> None:
    """Tell the engine that its session waits for tools: it comes back sooner, and more often, than a person."""
    replica = model.served.replicas.get(turn.replica)
    if submit.session is not None and replica is not None and calls_tools(turn.usage.finish_reasons):
        event = SessionEvent.CALLED_TOOLS
        replica.tell_session(SessionNews(session=submit.session.id, event=event, turn=submit.request_id))


def _request(
    model: ReadyModel, submit: Submit, turn: Turn, held: HeldBytes, observer: GenerationObserver
) -> ResumableRequest:
    assert turn.replica_choice is not None, "a stage has chosen a replica"

    def moved(replica: str, pause_s: float) -> None:
        turn.replica = replica
        turn.record.timeline.mark("failover", {"pause_s": pause_s})
        observer.moved(pause_s)

    deferred = turn.record.deferred
    tries_itself = deferred is not None and deferred.batch_id is not None  # a batch tries its lines again
    failover = None if tries_itself else model.served.config.failover
    return ResumableRequest(model.served.replicas, turn.replica_choice, submit, failover, held.resize, moved)


def joined(streams: Sequence[Deltas]) -> Deltas:
    """The deltas of one stream or several, as they come."""
    return streams[0] if len(streams) == 1 else _interleaved(streams)


async def _interleaved(streams: Sequence[Deltas]) -> Deltas:
    """The deltas of several streams as they come; the first error ends all of them, as closing does.

    Each stream runs at most one delta ahead, so a slow reader slows all of them down.
    """
    queue: asyncio.Queue[ChoiceDelta | Exception | None] = asyncio.Queue(maxsize=1)

    async def forward(stream: Deltas) -> None:
        async with aclosing(stream):
            try:
                async for delta in stream:
                    await queue.put(delta)
                await queue.put(None)
            except Exception as error:
                await queue.put(error)

    tasks = [asyncio.create_task(forward(stream)) for stream in streams]
    running = len(tasks)
    try:
        while running:
            item = await queue.get()
            if item is None:
                running -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
