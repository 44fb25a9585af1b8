"""Moderation in the request's path: of prompts before the engine is asked, of answers while they are written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvarn.answers.moderation.guard import GuardModel
from kvarn.answers.moderation.output_moderation import OutputModeration
from kvarn.answers.turn import GeneratedPrompt, Turn
from kvarn.catalog.model_table import ModelTable
from kvarn.catalog.text_pool import TextPool
from kvarn.config.platform import SafetyConfig
from kvarn.safety.errors import SafetyError
from kvarn.safety.moderator import BuiltInModerator, Claim, ModerationAwayError, Moderator
from kvarn.safety.prompt_log import PromptLog
from kvarn.safety.rules import RuleList
from kvarn.safety.verdict import RULE, Verdict
from kvarn.text.messages import normalize_messages
from kvarn.wire.openai.errors import ApiError, invalid_request, unavailable

ALIASES = frozenset(
    {
        "omni-moderation-latest",
        "omni-moderation-2024-09-26",
        "text-moderation-latest",
        "text-moderation-stable",
        "kvarn-moderation",
    }
)
"""Names under which clients ask for whatever moderates here."""


class Moderation:
    """The moderation of prompts and answers. Raises `SafetyError`: a rule is not a regular expression, or the
    moderating model is not served."""

    def __init__(self, config: SafetyConfig, models: ModelTable, text: TextPool, prompts: PromptLog) -> None:
        self._config = config
        self.prompts = prompts
        if config.model is not None and config.model not in {model.name for model in models}:
            raise SafetyError(f"safety.model names {config.model!r}, which is not served: add it under `models`")
        self.moderator: Moderator = BuiltInModerator(config.threshold, text)
        if config.model is not None:
            self.moderator = GuardModel(config.model, config, models, text)
        self._text, self._rules = text, RuleList(config.rules)

    async def judge(self, text: str, turn: Turn, *, tier: int | None = None) -> Verdict:
        """The verdict on a text, in the request's tier where no other is given; a match of the operator's rules is one
        more category. Raises `ApiError`: 503, the moderating model is away."""
        principal = turn.record.principal
        claim = Claim(principal.organization_id, principal.weight, turn.priority if tier is None else tier)
        try:
            verdict = await self.moderator.judge(text, claim)
        except ModerationAwayError as error:
            raise unavailable(f"The text could not be moderated: {error}.", "moderation_unavailable") from error
        if not self._rules:
            return verdict
        matched = await self._text.run(claim.tenant, len(text), lambda: self._rules.matches(text))
        return replace(verdict, scores={**verdict.scores, RULE: float(matched)})

    async def check_prompt(self, turn: Turn, prompt: GeneratedPrompt) -> None:
        """Offer a prompt to the log, and refuse one that is flagged, where prompts are moderated. Raises `ApiError`:
        400 `content_filter`; 503 where it cannot be looked at."""
        record = turn.record
        self.prompts.offer(record.principal, record.request_id, turn.model, prompt.logged, turn.id)
        if not self._config.moderate_input:
            return
        try:
            for param, texts in prompt.moderated:
                verdict = await self.judge("\n".join(texts()), turn)
                if verdict.flagged:
                    raise _refusal(verdict, param)
        except BaseException:  # cancelled too: the engine has not been asked
            turn.usage.failed = True
            raise

    def refuse_token_ids(self, param: str) -> None:
        """Refuse a prompt of token ids, which cannot be read here, where prompts are moderated. Raises `ApiError`:
        400."""
        if self._config.moderate_input:
            raise invalid_request(
                f"{param!r} must be text: this server moderates prompts, and cannot read these ids.", param
            )

    def output_moderation(self, turn: Turn) -> OutputModeration | None:
        """The moderation of one choice; None where answers are not moderated."""
        if not self._config.moderate_output:
            return None

        async def judge(text: str) -> Verdict:
            # An answer is under way, and its engine's work spent: it shall not be lost because its tier waits here.
            return await self.judge(text, turn, tier=min(turn.priority, 0))

        return OutputModeration(judge, self.moderator.look_every, self._config.hold_back_chars)


def _refusal(verdict: Verdict, param: str) -> ApiError:
    why = ", ".join(verdict.flagged)
    return invalid_request(f"The prompt was flagged by this server's moderation ({why}).", param, "content_filter")


def chat_texts(messages: Sequence[Mapping[str, Any]], tools: Iterable[Mapping[str, Any]] | None) -> Iterable[str]:
    """All that a chat tells the model: messages, tool calls and their results, and what the tools say of themselves."""
    for message in normalize_messages(messages):  # as the template shows them: no word hidden by JSON's escapes
        content = message.get("content")
        if isinstance(content, str):
            yield content
        else:
            yield from (part["text"] for part in content or ())
        yield message.get("reasoning_content") or ""
        for call in message.get("tool_calls") or ():
            yield call["function"]["name"]
            yield from _strings(call["function"]["arguments"])
    for tool in tools or ():
        yield from _strings(tool["function"])


def _strings(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield str(name)
            yield from _strings(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _strings(each)
