"""From messages to the tokens of a prompt, without holding up the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kvarn.serving.models import ReadyModel
from kvarn.serving.text_pool import TextPool
from kvarn.text.prompt import PromptBuilder


async def render_token_ids(
    text: TextPool, tenant: str, size: int, model: ReadyModel, make: Callable[[], PromptBuilder]
) -> list[int]:
    """The token ids of a prompt.

    Args:
        text: Threads for what is long.
        tenant: Who takes turns with others at them, and at the template's process.
        size: Bytes of what the prompt is made from.
        model: Whose template and tokenizer it is for.
        make: Makes what is to be rendered.

    Raises:
        ChatTemplateError: The model's template refuses the messages, or passes a limit.
        TokenizerError: The text cannot be encoded.
    """
    builder = await text.run(tenant, size, make)
    rendered = await model.text.template_turns.run(
        tenant, lambda: asyncio.create_task(model.text.chat_template.render(builder.request))
    )
    return await text.run(tenant, len(rendered), lambda: builder.token_ids(rendered))
