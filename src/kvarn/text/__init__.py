"""Text and tokens: checkpoints, tokenizers, chat templates, stop strings, tool calls, sampling parameters.

Light to import: the tokenizer and template libraries come when a model's files are loaded.
"""

from kvarn.text.chat_template import ChatTemplate
from kvarn.text.checkpoint import resolve_checkpoint
from kvarn.text.detokenizer import IncrementalDetokenizer
from kvarn.text.errors import ChatTemplateError, CheckpointError, TextError, TokenizerError
from kvarn.text.sampling import chat_sampling, check_sampling, completion_sampling
from kvarn.text.stop_strings import StopMatcher, StopResult, StopStrings
from kvarn.text.tokenizer import Tokenizer
from kvarn.text.tool_calls import (
    TextDelta,
    ToolCallArguments,
    ToolCallParser,
    ToolCallStart,
    ToolEvent,
    ToolFormat,
    find_format,
)

__all__ = [
    "ChatTemplate",
    "ChatTemplateError",
    "CheckpointError",
    "IncrementalDetokenizer",
    "StopMatcher",
    "StopResult",
    "StopStrings",
    "TextDelta",
    "TextError",
    "Tokenizer",
    "TokenizerError",
    "ToolCallArguments",
    "ToolCallParser",
    "ToolCallStart",
    "ToolEvent",
    "ToolFormat",
    "chat_sampling",
    "check_sampling",
    "completion_sampling",
    "find_format",
    "resolve_checkpoint",
]
