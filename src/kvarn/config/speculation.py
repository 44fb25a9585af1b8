"""Settings of speculation: tokens that are guessed and then verified by the model."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from kvarn.config.section import Section


class SpeculationConfig(Section):
    """Several tokens in one step: guessed cheaply, verified by the model. Answers do not change. See
    docs/guides/speculation.md."""

    method: Literal["auto", "ngram", "draft_model", "eagle3", "none"] = "auto"
    """Proposer of tokens. `ngram`: text that stands earlier in the request, or in recent answers to the same tenant;
    `draft_model`: a small model with the same tokenizer; `eagle3`: a head that was trained for this very model and
    reads its hidden states; `none`: no speculation. `auto`: `draft_model` where `model` is set, else `ngram`."""

    model: str | None = Field(None, min_length=1)
    """The draft model or the head: a directory of a Hugging Face checkpoint, a hub id, or the name of a packaged one
    (`kvarn-demo-draft`, `kvarn-demo-eagle3`)."""

    num_speculative_tokens: int | None = Field(None, ge=1, le=32)
    """Tokens guessed for one sequence and step at most. Default: 16 by `ngram`, else 8. `eagle3` guesses no more
    than 16."""

    adaptive: bool = True
    """Choose in each step how many guesses of each request are verified, by how many were right and what the step takes
    with them: none where that loses. Off: always as many as there are."""

    prompt_lookup_min: int = Field(1, ge=1)
    """Tokens at the end of the text that must stand there earlier, at least (`ngram`)."""

    prompt_lookup_max: int = Field(32, ge=1)
    """Tokens that are compared at most to find the longest such end (`ngram`)."""

    tenant_history: bool = True
    """Let `ngram` look at recent answers of the same tenant, cache salt and adapter too."""

    draft_cache_gib: float | None = Field(None, gt=0)
    """Memory of the draft model's KV cache in GiB. Default: what as many tokens take as the model's own cache holds, up
    to a fiftieth of the machine's memory; one full context at least."""

    @model_validator(mode="after")
    def _names_its_model(self) -> SpeculationConfig:
        if self.method == "draft_model" and self.model is None:
            raise ValueError("method draft_model needs `model`: a small model with the same tokenizer")
        if self.method == "eagle3" and self.model is None:
            raise ValueError("method eagle3 needs `model`: the head that was trained for this model")
        if self.method in ("ngram", "none") and self.model is not None:
            raise ValueError(f"method {self.method} uses no `model`: leave it out, or set the method to draft_model")
        if self.prompt_lookup_max < self.prompt_lookup_min:
            raise ValueError("prompt_lookup_max must not be less than prompt_lookup_min")
        return self

    @property
    def chosen(self) -> Literal["ngram", "draft_model", "eagle3", "none"]:
        """The method, `auto` decided."""
        if self.method != "auto":
            return self.method
        return "ngram" if self.model is None else "draft_model"

    @property
    def length(self) -> int:
        """Tokens guessed for one sequence and step at most."""
        return self.num_speculative_tokens or (16 if self.chosen == "ngram" else 8)
