"""Whether a version answers golden prompts rightly."""

from __future__ import annotations

import itertools

from kvarn.quality.golden import GoldenQuestion
from kvarn.quality.probe import TENANT
from kvarn.replica.client.protocol import ReplicaLostError
from kvarn.serving.golden import render_question
from kvarn.serving.models import ServedModel
from kvarn.serving.text_pool import TextPool
from kvarn.text.errors import TextError
from kvarn.wire.messages import Submit
from kvarn.wire.sampling import SamplingParams

_MORE_TOKENS = 8
"""Beyond those of the right answer: whoever goes on has not answered rightly."""
_PRIORITY = 10
_numbers = itertools.count()


async def answers_rightly(model: ServedModel, text: TextPool, question: GoldenQuestion) -> bool:
    """Ask one, greedily; whether the answer is the right one, word for word. A template that refuses it is wrong.

    Raises:
        ApiError: The model is not ready.
        RequestRefusedError, ReplicaLostError: Its replica did not answer.
    """
    ready = model.when_ready()
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
