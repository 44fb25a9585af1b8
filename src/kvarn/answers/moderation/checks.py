"""Moderation in the request's path: of prompts before the engine is asked, of answers while they are written."""

from __future__ import annotations

from kvarn.answers.moderation.guard import GuardModel
from kvarn.answers.moderation.output_moderation import OutputModeration
from kvarn.answers.turn import GeneratedPrompt, Turn
from kvarn.catalog.model_table import ModelTable
from kvarn.catalog.text_pool import TextPool
from kvarn.config.platform import SafetyConfig
from kvarn.safety.errors import SafetyError
from kvarn.safety.moderator import BuiltInModerator, Claim, ModerationAwayError, Moderator, WithRules
from kvarn.safety.prompt_log import PromptLog
from kvarn.safety.rules import RuleList
from kvarn.safety.verdict import Verdict
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
        base: Moderator = BuiltInModerator(config.threshold, text)
        if config.model is not None:
            base = GuardModel(config.model, config, models, text)
        rules = RuleList(config.rules)
        self.moderator = WithRules(base, rules, text) if rules else base

    async def judge(self, text: str, turn: Turn, *, tier: int | None = None) -> Verdict:
        """The verdict on a text, in the request's tier where no other is given. Raises `ApiError`: 503, the moderating
        model is away."""
        principal = turn.record.principal
        claim = Claim(principal.organization_id, principal.weight, turn.priority if tier is None else tier)
        try:
            return await self.moderator.judge(text, claim)
        except ModerationAwayError as error:
            raise unavailable(f"The text could not be moderated: {error}.", "moderation_unavailable") from error

    async def check_prompt(self, turn: Turn, prompt: GeneratedPrompt) -> None:
        """Offer a prompt to the log, and refuse one that is flagged, where prompts are moderated. Raises `ApiError`:
        400 `content_filter`; 503 where it cannot be looked at."""
        record = turn.record
        self.prompts.offer(record.principal, record.request_id, turn.model, prompt.logged)
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
