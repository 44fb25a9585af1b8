"""An answer's way through the engine: from a prompt's tokens to the deltas of its choices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from kvarn.answers.choice import Choice, ChoiceDelta
from kvarn.answers.held_bytes import HeldBytes
from kvarn.answers.moderation.output_watch import OutputWatch
from kvarn.answers.work import Work, salt_of
from kvarn.catalog.failover import client_of, generate_anywhere
from kvarn.catalog.models import ReadyModel
from kvarn.catalog.timeouts import NO_TIMEOUTS, StageTimeoutError, timeouts_of, within_timeouts
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


def check_token_ids(token_ids: list[int], model: ReadyModel, param: str) -> None:
    """Refuse token ids that the model has not.

    Raises:
        ApiError: 400 that names the field.
    """
    if not model.card.has_tokens(token_ids):
        raise invalid_request(f"{param!r} holds token ids outside 0 to {model.card.vocab_size - 1}.", param)


def make_choices(
    request: ChatCompletionRequest | CompletionRequest,
    sampling: SamplingParams,
    model: ReadyModel,
    limits: GatewayConfig,
    *,
    watch: Callable[[], OutputWatch | None],
    first_index: int = 0,
    continued: Sequence[int] = (),
    shown: frozenset[int] = frozenset(),
    splitter: Callable[[], ReasoningSplitter | None] = lambda: None,
) -> list[Choice]:
    """The `n` choices of one prompt; the first has number `first_index` in the answer.

    `watch` gives each its moderation; `continued` are the prompt's tokens where the answer's text goes on from the
    prompt's; `shown` are special tokens that are part of the text all the same; `splitter` gives each who tells its
    reasoning from its content.
    """
    strings = stop_strings(request, limits)
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
            watch=watch(),
        )
        for index in range(sampling.n)
    ]


def make_submit(
    request_id: str,
    prompt: list[int],
    sampling: SamplingParams,
    work: Work,
    cache_salt: str | None,
    grammar: Grammar | None = None,
) -> Submit:
    """What is sent to the engine. The tenant and its secret salt come from the server, never from the client: a
    tenant's cached prompts cannot be found, or their presence timed, by another."""
    principal, slo = work.principal, work.slo
    return Submit(
        request_id=request_id,
        prompt_token_ids=prompt,
        sampling=sampling,
        tenant=principal.organization_id,
        weight=principal.weight,
        priority=work.priority,
        adapter=work.adapter,
        cache_salt=salt_of(principal, cache_salt),
        grammar=grammar,
        ttft_left_s=None if slo is None else work.record.received + slo.ttft_target_s - SYSTEM_CLOCK.now(),
        tpot_target_s=None if slo is None else slo.tpot_target_s,
    )


async def generate(
    model: ReadyModel, submit: Submit, choices: Sequence[Choice], work: Work, held: HeldBytes, metrics: GatewayMetrics
) -> AsyncGenerator[ChoiceDelta, None]:
    """Run a prompt; yields what each step adds to a choice.

    A choice ends with a stop string, by its transform or by moderation, whatever the engine still sends for it; when
    all have ended, the request is aborted by closing the replica's generator.

    Args:
        model: Where it runs.
        submit: What is sent to the engine.
        choices: One for each of `submit.sampling.n`, in order.
        work: Where its tokens are counted.
        held: Counts what the engine has written and nobody has read yet.
        metrics: Where its latencies are shown.

    Raises:
        RequestRefusedError: The engine refused or gave up the request.
        ReplicaLostError: The engine is not ready, died or fell silent.
        StageTimeoutError: A stage took longer than the model's `timeouts`.
        ApiError: The answer cannot be moderated now, or there is no memory left for what nobody has read.
    """
    observer = metrics.generation(model.name, work.record.received)
    usage, running = work.usage, len(choices)
    usage.count(prompt=len(submit.prompt_token_ids))
    try:
        tokens = _tokens(model, submit, work, held, observer)
        timeouts = timeouts_of(model.served.config.timeouts, external=False)
        if timeouts != NO_TIMEOUTS:
            tokens = within_timeouts(tokens, timeouts, lambda new: bool(new.token_ids))
        async with aclosing(tokens) as new_tokens:
            async for new in new_tokens:
                choice = choices[new.index]
                if choice.ended:
                    continue
                if new.token_ids:
                    observer.delta(new.index, len(new.token_ids))
                delta = choice.add(new)
                usage.count(cached=new.cached_tokens, completion=len(delta.token_ids), reasoning=delta.reasoning_tokens)
                if choice.watch is not None:
                    shown = await choice.watch.look(delta)
                    if shown is None:
                        continue
                    delta = shown
                if choice.transform is not None:
                    choice.transform(delta)
                if delta.finish_reason is not None:
                    choice.ended = True
                    running -= 1
                    if not running:  # counted before the client hears of it
                        usage.pending -= 1
                        observer.finished()
                yield delta
                if not running:
                    return
    except (RequestRefusedError, ReplicaLostError, StageTimeoutError, ApiError) as error:
        usage.failed = True
        usage.refused = usage.refused or isinstance(error, RequestRefusedError)
        observer.failed()
        raise


def _tokens(
    model: ReadyModel, submit: Submit, work: Work, held: HeldBytes, observer: GenerationObserver
) -> AsyncGenerator[TokenDelta, None]:
    """What the model's replicas answer. A batch itself tries its lines again."""
    replicas, choice = model.served.replicas, work.replica_choice
    assert choice is not None, "a replica is chosen when work begins"
    if work.record.batch_id is not None:
        choice.sent(replicas.clock.now())
        return client_of(replicas, choice.replica).generate(submit, held.become)

    def moved(replica: str, pause_s: float) -> None:
        work.replica = replica
        observer.moved(pause_s)

    return generate_anywhere(replicas, choice, submit, model.served.config.failover, held.become, moved)


async def interleave(streams: Sequence[AsyncGenerator[ChoiceDelta, None]]) -> AsyncGenerator[ChoiceDelta, None]:
    """The deltas of several streams as they come; the first error ends all of them, as closing does.

    Each stream runs at most one delta ahead, so a slow reader slows all of them down.
    """
    queue: asyncio.Queue[ChoiceDelta | Exception | None] = asyncio.Queue(maxsize=1)

    async def forward(stream: AsyncGenerator[ChoiceDelta, None]) -> None:
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
