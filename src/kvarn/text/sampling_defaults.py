"""What a sampling parameter is where a request leaves it out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """OpenAI's defaults, unless the checkpoint's generation_config.json says otherwise."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int | None = None
    """Tokens of a chat answer; None: as many as the context has room for."""
