"""A byte-level tokenizer on disk, and a replica whose answers a test chooses."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from msgspec.structs import replace
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from fake_client import FakeReplicaClient
from kvarn.wire.messages import ModelCard, PositionLogprobs, Submit, TokenDelta, TokenLogprob

BOS, EOS, SYSTEM, USER, ASSISTANT = 256, 257, 258, 259, 260
SPECIALS = ["<bos>", "<eos>", "<|system|>", "<|user|>", "<|assistant|>"]
TEMPLATE = (
    "{{ bos_token }}"
    "{% if tools %}<|system|>tools: {{ tools | tojson }}\n{% endif %}"
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content or '' }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write_checkpoint(directory: Path, template: str | None = TEMPLATE) -> Path:
    """A tokenizer in which every byte is one token: text in UTF-8 is cut at every possible place."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    byte_to_char = _byte_to_char()
    assert sorted(byte_to_char.values()) == alphabet
    tokenizer = Tokenizer(models.BPE(vocab={byte_to_char[b]: b for b in range(256)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIALS])
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"bos_token": "<bos>", "eos_token": "<eos>", "tokenizer_class": "PreTrainedTokenizerFast"}
    if template is not None:
        settings["chat_template"] = template
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    (directory / "config.json").write_text(
        json.dumps({"model_type": "llama", "bos_token_id": BOS, "eos_token_id": EOS})
    )
    (directory / "generation_config.json").write_text(json.dumps({"bos_token_id": BOS, "eos_token_id": EOS}))
    return directory


def _byte_to_char() -> dict[int, str]:
    """The printable stand-in of each byte in byte-level BPE vocabularies (GPT-2)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}


def answer_text(text: str, *, end: bool = True) -> list[int]:
    """The tokens of an answer: its bytes, then the end token."""
    return [*text.encode(), *([EOS] if end else [])]


@dataclass(eq=False)
class FakeReplica(FakeReplicaClient):
    """Answers with a greeting unless a test chooses something else."""

    answer: Callable[[Submit, int], list[int]] = lambda request, index: answer_text("Hello, världen! 🌍")

    def delta(self, request: Submit, index: int, token_ids: list[int], *, first: bool, last: bool) -> TokenDelta:
        delta = super().delta(request, index, token_ids, first=first, last=last)
        top, prompt_top = request.sampling.logprobs, request.sampling.prompt_logprobs
        if top is not None:
            delta = replace(delta, logprobs=[logprobs_of(token, top) for token in token_ids])
        if first and prompt_top is not None:
            rest = [logprobs_of(token, prompt_top) for token in request.prompt_token_ids[1:]]
            delta = replace(delta, prompt_logprobs=[None, *rest])
        return delta

    def reset(self) -> None:
        """As new, for the next test."""
        card = EMBED_CARD if self.card is not None and self.card.kind == "embed" else GENERATE_CARD
        self.__dict__.pop("generate", None)  # a test may have put its own in the way
        self.__init__(card)


@cache
def logprobs_of(token: int, top: int) -> PositionLogprobs:
    """A made-up but fixed distribution: the token itself first, then the ids after it."""
    ranked = [TokenLogprob((token + i) % 256, -0.25 * (i + 1), i + 1) for i in range(max(top, 1))]
    chosen = TokenLogprob(token, -0.25, 1)
    return PositionLogprobs.of(chosen, [chosen, *ranked[1:]][:top])


GENERATE_CARD = ModelCard(
    kind="generate",
    architecture="LlamaForCausalLM",
    dtype="float32",
    vocab_size=261,
    max_context_length=512,
    num_parameters=1000,
    kv_blocks=64,
)
EMBED_CARD = ModelCard(
    kind="embed",
    architecture="BertModel",
    dtype="float32",
    vocab_size=261,
    max_context_length=64,
    num_parameters=1000,
    embedding_size=4,
)
