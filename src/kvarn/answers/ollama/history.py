"""Messages of a conversation that a model can read: the oldest are left out where it is too long."""

from __future__ import annotations

from collections.abc import Sequence

from kvarn.wire.ollama.requests import Message

_ROOM = 0.75  # share of the context that the messages may take: the rest is for the answer


def without_oldest(messages: Sequence[Message], prompt_tokens: int, limit: int) -> list[Message] | None:
    """The messages without so many of the oldest that the rest has about three quarters of `limit` tokens (all have
    `prompt_tokens`); None where none can be left out. Instructions and the last message stay, and the results of calls
    go with them."""
    groups: list[list[Message]] = []
    for message in messages:
        if message.role == "tool" and groups:
            groups[-1].append(message)
        else:
            groups.append([message])
    excess = (1 - limit * _ROOM / prompt_tokens) * sum(map(_length, messages))
    last_user = max((index for index, group in enumerate(groups) if group[0].role == "user"), default=-1)
    kept: list[Message] = []
    begun = False
    for index, group in enumerate(groups[:-1]):
        # What is left begins with the user, as templates want it.
        begun = begun or (excess <= 0 and (group[0].role == "user" or index > last_user))
        if begun or group[0].role in ("system", "developer"):
            kept += group
        else:
            excess -= sum(map(_length, group))
    kept += groups[-1]
    return kept if len(kept) < len(messages) else None


def _length(message: Message) -> int:
    """About as its tokens are."""
    calls = sum(len(str(call.function.arguments)) for call in message.tool_calls or ())
    return len(message.content or "") + len(message.thinking or "") + calls + 1
