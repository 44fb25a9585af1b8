"""Golden prompts for the two versions of a rollout."""

from __future__ import annotations

import asyncio
import itertools
import logging
from pathlib import Path

from kvarn.catalog.model_table import ModelTable
from kvarn.catalog.models import ServedModel
from kvarn.catalog.text_pool import TextPool
from kvarn.quality.golden import GoldenQuestion, GoldenSetError, golden_set_path, read_golden_set, spread
from kvarn.quality.golden_models import render_question
from kvarn.quality.probe import TENANT
from kvarn.replica.client.protocol import ReplicaLostError, RequestRefusedError
from kvarn.rollouts.rollout import Rollout
from kvarn.text.errors import TextError
from kvarn.wire.messages import Submit
from kvarn.wire.openai.errors import ApiError
from kvarn.wire.sampling import SamplingParams

_MORE_TOKENS = 8
"""Tokens beyond those of the right answer: a longer answer is wrong."""
_PRIORITY = 10
_numbers = itertools.count()

log = logging.getLogger(__name__)


def golden_path(version: ServedModel | None) -> Path | None:
    """The file of a version's golden prompts; None: it has none."""
    return None if version is None else golden_set_path(version.config.path, version.config.golden_prompts)


async def ask_golden(rollout: Rollout, models: ModelTable, text: TextPool) -> None:
    """Have both versions answer the stable one's golden prompts; what fails for want of a replica is done again."""
    stable, candidate = (models.find(version) for version in (rollout.stable, rollout.candidate))
    path = golden_path(stable)
    try:
        known = [] if path is None else await asyncio.to_thread(read_golden_set, path)
        questions = spread([each for each in known if each.answer is not None], rollout.settings.golden_prompts)
        for question in questions:
            asked = [answers_rightly(version, text, question) for version in (stable, candidate)]
            rollout.golden_answered(question.id, *await asyncio.gather(*asked))
            if rollout.gates.failure or rollout.ended:
                return
    except GoldenSetError as error:
        log.error("rollout goes on without golden prompts: %s", error, extra={"model": rollout.model})
    except (ApiError, ReplicaLostError, RequestRefusedError) as error:
        log.info("golden prompts not answered, retrying: %s", error, extra={"model": rollout.model})
        return
    rollout.golden_done()


async def answers_rightly(model: ServedModel, text: TextPool, question: GoldenQuestion) -> bool:
    """Ask one, greedily; whether the answer is the right one, word for word. A template that refuses it is wrong."""
    ready = model.require_ready()
    try:
        prompt = await render_question(ready, text, question)
    except TextError:
        return False
    room = ready.card.max_context_length - len(prompt.token_ids)
    if room <= 0:
        return False
    tokenizer = ready.text.tokenizer
    right = (question.answer or "").strip()
    longest = len(tokenizer.encode(right, add_special_tokens=False)) + _MORE_TOKENS
    sampling = SamplingParams(
        seed=0, temperature=0.0, max_tokens=min(longest, room), stop_token_ids=list(tokenizer.eos_token_ids)
    )
    request = Submit(
        request_id=f"golden-{model.process}-{next(_numbers)}",
        prompt_token_ids=prompt.token_ids,
        sampling=sampling,
        tenant=TENANT,
        priority=_PRIORITY,
    )
    replicas = model.replicas
    if not replicas.ready:
        raise ReplicaLostError(f"no replica of {model.name} is ready")
    client = replicas[replicas.ready[0]]
    token_ids = [token async for delta in client.generate(request) for token in delta.token_ids]
    return tokenizer.decode(token_ids).strip() == right
