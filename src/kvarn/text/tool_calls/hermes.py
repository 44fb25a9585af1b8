"""Calls as Hermes and Qwen models write them, and as `kvarn-demo` does."""

from __future__ import annotations

from kvarn.text.tool_calls.base import ToolCallParser, Waiting

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


class HermesParser(ToolCallParser):
    r"""Reads an object between tags, as often as one comes, anywhere in the text.

    <tool_call>
    {"name": "add", "arguments": {"a": 1, "b": 2}}
    </tool_call>
    """

    def _parse(self) -> Waiting[None]:
        while (yield from self._text_up_to(_OPEN)):
            begin = self._held.index(_OPEN) + len(_OPEN)
            place = yield from self._next(begin)
            if place is not None and (yield from self._json_call(place)):
                yield from self._skip(_CLOSE)
                if self.satisfied:
                    return
            else:
                self._give(self._held[:begin])
                self._drop(begin)


def hermes_opening(name: str | None) -> str:
    """Text that begins a call, up to its arguments, or up to its name if the model chooses it.

    It ends before a space: tokenizers join the space to what follows.
    """
    return f'{_OPEN}\n{{"name":' if name is None else f'{_OPEN}\n{{"name": "{name}", "arguments":'
