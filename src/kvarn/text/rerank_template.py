"""Prompt in which Qwen3-Reranker reads a query and a document: a chat to be answered by yes or no (its model card)."""

from __future__ import annotations

from kvarn.text.tokenizer import Tokenizer

QWEN3 = "qwen3"
"""The template's name in `ModelCard.pair_template`."""

INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
"""Instruction of the judge if a request has none."""

_BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
_AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


class RerankTemplate:
    """Token ids of pairs. Special tokens that a text spells out are words."""

    def __init__(self, tokenizer: Tokenizer, instruction: str | None = None) -> None:
        self._tokenizer = tokenizer
        self._instruction = instruction or INSTRUCTION
        self._before = tokenizer.encode(_BEFORE, add_special_tokens=False)
        self._after = tokenizer.encode(_AFTER, add_special_tokens=False)

    def encode(self, query: str, document: str, max_document: int | None = None) -> list[int]:
        """A pair's; the document is cut to `max_document` tokens. Raises as `Tokenizer.encode`."""
        if max_document is not None:
            document = self._tokenizer.cut(document, max_document)
        pair = f"<Instruct>: {self._instruction}\n<Query>: {query}\n<Document>: {document}"
        return [*self._before, *self._tokenizer.encode_words(pair), *self._after]
