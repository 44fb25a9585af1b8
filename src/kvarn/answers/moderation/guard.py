"""A served chat model as moderator."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import aclosing
from dataclasses import dataclass

from kvarn.catalog.failover import ResumableRequest, generate_anywhere
from kvarn.catalog.model_table import ModelTable
from kvarn.catalog.models import ReadyModel
from kvarn.catalog.text_pool import TextPool
from kvarn.config.platform import SafetyConfig
from kvarn.replica.client.protocol import ReplicaLostError, RequestRefusedError
from kvarn.safety.guard_model import MAX_TOKENS, PROMPT, read_verdict
from kvarn.safety.moderator import Claim, ModerationAwayError
from kvarn.safety.verdict import Verdict, unflagged
from kvarn.text.errors import ChatTemplateError, TokenizerError
from kvarn.wire.messages import Submit
from kvarn.wire.openai.errors import ApiError
from kvarn.wire.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class GuardModel:
    """Asks a model of this server, greedily, for each text; long texts in parts that fit its context."""

    name: str
    config: SafetyConfig
    models: ModelTable
    pool: TextPool
    look_every: int = 400

    async def judge(self, text: str, claim: Claim) -> Verdict:
        worst = unflagged(self.config.threshold)
        try:
            async with asyncio.timeout(self.config.model_timeout_s):
                model = self.models.find(self.name).require_ready()
                for prompt in await self._prompts(text, model, claim):
                    verdict = await self._ask(prompt, model, claim)
                    scores = {name: max(score, worst.scores.get(name, 0.0)) for name, score in verdict.scores.items()}
                    worst = Verdict({**worst.scores, **scores}, verdict.threshold)
        except TimeoutError:
            raise ModerationAwayError(
                f"{self.name!r} gave no verdict within {self.config.model_timeout_s:g} s"
            ) from None
        except (ApiError, RequestRefusedError, ReplicaLostError, ChatTemplateError, TokenizerError) as error:
            raise ModerationAwayError(f"{self.name!r} gives no verdicts: {error}") from error
        return worst

    async def _prompts(self, text: str, model: ReadyModel, claim: Claim) -> list[list[int]]:
        max_tokens = model.card.max_context_length - MAX_TOKENS - len(await self._render("", model, claim))
        if max_tokens < 16:
            raise ModerationAwayError(f"the context of {self.name!r} is too short to moderate with")
        parts = await self.pool.run(claim.tenant, len(text), lambda: _parts(text, max_tokens, model))
        return [await self._render(part, model, claim) for part in parts]

    async def _render(self, text: str, model: ReadyModel, claim: Claim) -> list[int]:
        instructions = PROMPT if self.config.model_prompt is None else self.config.model_prompt
        messages = [{"role": "system", "content": instructions}] if instructions else []
        messages.append({"role": "user", "content": text})
        return await model.render(self.pool, claim.tenant, len(text), lambda: messages)

    async def _ask(self, prompt: list[int], model: ReadyModel, claim: Claim) -> Verdict:
        ends = model.text.tokenizer.eos_token_ids
        sampling = SamplingParams(seed=0, temperature=0.0, max_tokens=MAX_TOKENS, stop_token_ids=sorted(ends))
        request_id = f"moderation-{uuid.uuid4().hex}"
        submit = Submit(
            request_id=request_id,
            prompt_token_ids=prompt,
            sampling=sampling,
            priority=claim.priority,
            tenant=claim.tenant,
            weight=claim.weight,
        )
        tokens: list[int] = []
        served = model.served
        choice = served.replicas.choose(served.replicas.route_of(submit))
        if choice is None:
            raise served.not_ready()
        resumable = ResumableRequest(served.replicas, choice, submit, served.config.failover)
        try:
            async with aclosing(generate_anywhere(resumable)) as deltas:
                async for delta in deltas:
                    tokens += delta.token_ids
        finally:
            choice.end()
        text = model.text.tokenizer.decode([token for token in tokens if token not in ends])
        verdict = read_verdict(text, self.config.threshold)
        if verdict is None:
            raise ModerationAwayError(f"{self.name!r} answered neither 'safe' nor 'unsafe'")
        return verdict


def _parts(text: str, max_tokens: int, model: ReadyModel) -> list[str]:
    tokens = model.text.tokenizer.encode_words(text)
    if len(tokens) <= max_tokens:
        return [text]
    step = max_tokens // 2  # a part that is cut anew may take more tokens than before
    return [model.text.tokenizer.decode(tokens[at : at + step]) for at in range(0, len(tokens), step)]
