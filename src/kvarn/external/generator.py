"""The generator of a model that other servers run: requests are sent there as they are."""

from __future__ import annotations

from functools import partial

from kvarn.answers.generator import Generator
from kvarn.external.chat import count_external_chat, external_chat, prompt_key
from kvarn.external.completions import external_completion
from kvarn.external.embeddings import embed_external, external_inputs
from kvarn.external.model import ExternalModel


def external_generator(external: ExternalModel) -> Generator:
    """The generator of one model."""
    return Generator(
        prompt_chat=partial(external_chat, external),
        prompt_completion=partial(external_completion, external),
        count_chat_tokens=partial(count_external_chat, external),
        embedding_inputs=lambda model, named, max_tokens: external_inputs(external, named, max_tokens),
        pick_embedder=lambda model, inputs: external.picked(model, prompt_key({"prompt": inputs[0]})),
        embed=lambda turn, model, inputs, dimensions: embed_external(external, inputs, turn, dimensions),
    )
