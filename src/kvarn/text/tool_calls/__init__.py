"""Tool calls in the text a model writes: found while it is written, in the format of each family of models."""

from kvarn.text.tool_calls.events import TextDelta, ToolCallArguments, ToolCallParser, ToolCallStart, ToolEvent
from kvarn.text.tool_calls.formats import HERMES, LLAMA3, MISTRAL, MISTRAL_TAGGED, PYTHONIC, ToolFormat, find_format

__all__ = [
    "HERMES",
    "LLAMA3",
    "MISTRAL",
    "MISTRAL_TAGGED",
    "PYTHONIC",
    "TextDelta",
    "ToolCallArguments",
    "ToolCallParser",
    "ToolCallStart",
    "ToolEvent",
    "ToolFormat",
    "find_format",
]
