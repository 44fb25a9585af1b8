"""Edits of a conversation before the model sees it (`context_management`)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag, ValidationInfo, model_validator

from kvarn.wire.openai.common import DefaultsModel, LenientModel, RequestModel, warn_ignored


class Amount(DefaultsModel):
    """So many tokens, tool uses or turns."""

    type: Literal["input_tokens", "tool_uses", "thinking_turns", "all"]
    value: int = Field(0, ge=0)


class ClearThinking(LenientModel):
    """Leave out the thinking of all turns but the latest."""

    type: str
    keep: Amount | Literal["all"] | None = None

    @property
    def kept_turns(self) -> int | None:
        """Turns whose thinking stays; None: all."""
        if self.keep is None:
            return 1
        return None if isinstance(self.keep, str) or self.keep.type == "all" else self.keep.value


class ClearToolUses(LenientModel):
    """Leave out the results of all calls but the latest, once the prompt is long."""

    type: str
    trigger: Amount = Amount(type="input_tokens", value=100_000)
    keep: Amount = Amount(type="tool_uses", value=3)
    clear_at_least: Amount | None = None
    exclude_tools: list[str] | None = None
    clear_tool_inputs: bool | list[str] | None = None


class OtherEdit(RequestModel):
    """An edit of another type: it is not made."""

    model_config = ConfigDict(extra="ignore")

    type: str


def _kind(edit: Any) -> str:
    kind = edit.get("type") if isinstance(edit, dict) else getattr(edit, "type", None)
    for known in ("clear_thinking", "clear_tool_uses"):
        if isinstance(kind, str) and kind.startswith(known + "_"):
            return known
    return "other"


Edit = Annotated[
    Annotated[ClearThinking, Tag("clear_thinking")]
    | Annotated[ClearToolUses, Tag("clear_tool_uses")]
    | Annotated[OtherEdit, Tag("other")],
    Discriminator(_kind),
]


class ContextManagement(LenientModel):
    edits: Annotated[list[Edit], Field(fail_fast=True, max_length=16)] | None = None

    @model_validator(mode="after")
    def _warn_of_others(self, info: ValidationInfo) -> ContextManagement:
        for number, edit in enumerate(self.edits or ()):
            if isinstance(edit, OtherEdit):
                warn_ignored(info, f"ignored 'context_management.edits[{number}]', this server makes no such edit")
        return self
