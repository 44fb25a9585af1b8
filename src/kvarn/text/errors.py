"""Errors between text and tokens."""

from __future__ import annotations


class TextError(Exception):
    """Base of the errors of this package; the message says what to do."""


class CheckpointError(TextError):
    """A checkpoint cannot be found, downloaded or read."""


class TokenizerError(TextError):
    """A tokenizer cannot be loaded, or text or token ids cannot be converted."""


class ChatTemplateError(TextError):
    """A chat template is missing, broken, or refuses the messages."""


class TemplateLimitError(ChatTemplateError):
    """A chat template takes more time or memory than it may."""


class PromptTooLongError(ChatTemplateError):
    """A chat template writes more than the model's context can hold."""
