"""A byte-level tokenizer on disk, and a replica whose answers a test chooses."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from kvarn.replica.api import ReplicaLostError, ReplicaState, RequestRefusedError
from kvarn.replica.stream import Hold, RequestStream
from kvarn.wire.messages import (
    EngineStats,
    FinishReason,
    ModelCard,
    PositionLogprobs,
    Submit,
    TokenDelta,
    TokenLogprob,
)

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


@dataclass
class FakeReplica:
    """Implements the `Replica` protocol with answers a test chooses; merges deltas as the real one does."""

    card: ModelCard | None
    answer: Callable[[Submit, int], list[int]] = lambda request, index: answer_text("Hello, världen! 🌍")
    state: ReplicaState = ReplicaState.READY
    progress: tuple[str, float] = ("serve", 1.0)
    stats: EngineStats = field(default_factory=EngineStats)
    tokens_per_step: int = 1
    step_s: float = 0.0
    cached_tokens: int = 0
    refusal: RequestRefusedError | None = None
    lose_after: int | None = None
    """Die once this many tokens of a choice are out."""
    hold: asyncio.Event | None = None
    """Where set, requests wait for it before their first token."""
    submitted: list[Submit] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    running: set[str] = field(default_factory=set)
    yields: int = 0
    embedded: list[list[list[int]]] = field(default_factory=list)

    def reset(self) -> None:
        """As new, for the next test."""
        card = EMBED_CARD if self.card is not None and self.card.kind == "embed" else GENERATE_CARD
        self.__dict__.pop("generate", None)  # a test may have put its own in the way
        self.__init__(card)  # type: ignore[misc]

    async def generate(self, request: Submit, hold: Hold | None = None) -> AsyncGenerator[TokenDelta, None]:
        self.submitted.append(request)
        if self.refusal is not None:
            raise self.refusal
        if self.state is not ReplicaState.READY:
            raise ReplicaLostError("not ready")
        self.running.add(request.request_id)
        stream = RequestStream(request.sampling.n, hold)
        producer = asyncio.create_task(self._produce(request, stream))
        try:
            while deltas := await stream.take():
                for delta in deltas:
                    self.yields += 1
                    yield delta
            self.finished.append(request.request_id)
        finally:
            producer.cancel()
            stream.close()
            self.running.discard(request.request_id)
            if request.request_id not in self.finished:
                self.aborted.append(request.request_id)

    async def _produce(self, request: Submit, stream: RequestStream) -> None:
        sampling = request.sampling
        if self.hold is not None:
            await self.hold.wait()
        answers = [self.answer(request, index) for index in range(sampling.n)]
        sent, open_choices = [0] * sampling.n, set(range(sampling.n))
        while open_choices:
            await asyncio.sleep(self.step_s)
            if self.lose_after is not None and max(sent) >= self.lose_after:
                stream.fail(ReplicaLostError("the engine process died"))
                return
            for index in sorted(open_choices):
                end = min(sent[index] + self.tokens_per_step, sampling.max_tokens)
                tokens = answers[index][sent[index] : end]
                first = sent[index] == 0 and index == 0
                sent[index] += len(tokens)
                reason = self._finish_reason(request, tokens, sent[index], len(answers[index]))
                if reason is not None:
                    open_choices.discard(index)
                if not stream.put(self._delta(request, index, tokens, reason, first)):
                    return

    @staticmethod
    def _finish_reason(request: Submit, tokens: list[int], sent: int, total: int) -> FinishReason | None:
        if tokens and tokens[-1] in request.sampling.stop_token_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if sent >= request.sampling.max_tokens or sent >= total else None

    def _delta(
        self, request: Submit, index: int, tokens: list[int], reason: FinishReason | None, first: bool
    ) -> TokenDelta:
        sampling = request.sampling
        prompt_logprobs: list[PositionLogprobs | None] | None = None
        if first and sampling.prompt_logprobs is not None:
            rest = [logprobs_of(token, sampling.prompt_logprobs) for token in request.prompt_token_ids[1:]]
            prompt_logprobs = [None, *rest]
        return TokenDelta(
            request_id=request.request_id,
            index=index,
            token_ids=tokens,
            logprobs=None if sampling.logprobs is None else [logprobs_of(token, sampling.logprobs) for token in tokens],
            prompt_logprobs=prompt_logprobs,
            finish_reason=reason,
            cached_tokens=self.cached_tokens if first else 0,
        )

    async def embed(self, request_id: str, inputs: list[list[int]]) -> list[bytes]:
        if self.refusal is not None:
            raise self.refusal
        self.embedded.append(inputs)
        await asyncio.sleep(self.step_s)
        assert self.card is not None
        size = self.card.embedding_size
        return [struct.pack(f"<{size}f", *[(sum(each) + i) / 1000 for i in range(size)]) for each in inputs]


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
