"""Prompts of chats, for tests without an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvarn.text.chat_template import ChatTemplate


def render_chats(directory: Path, chats: Sequence[dict[str, Any]]) -> list[str]:
    """The prompts of chats (`messages`, `tools`), by the template of a checkpoint."""

    async def render() -> list[str]:
        template = ChatTemplate.load(directory)
        try:
            return [
                await template.render(template.request(chat["messages"], tools=chat.get("tools"))) for chat in chats
            ]
        finally:
            await template.close()

    return asyncio.run(render())
