"""The server under test, and the request bodies it is sent."""

from __future__ import annotations

from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

import msgspec

from kvarn.traffic.workload import BenchRequest, Vocabulary


class Endpoint(StrEnum):
    """Which of OpenAI's two generating endpoints is driven."""

    COMPLETIONS = "completions"
    """`/v1/completions` with token-id prompts: exact lengths, exact sharing."""
    CHAT = "chat"
    """`/v1/chat/completions` with one user message of English words: about the length asked for."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    """Root of the server, with or without `/v1`."""
    model: str
    endpoint: Endpoint = Endpoint.COMPLETIONS
    api_key: str | None = None
    ignore_eos: bool = True
    """Ask for exactly the output length (`ignore_eos`, `min_tokens`: fields of vLLM that many servers know)."""
    vocabulary: Vocabulary = Vocabulary()
    seed: int = 0
    """Seed of the prompts' tokens."""
    timeout_s: float = 600.0
    """A request that takes longer is given up and counted as `timeout`."""

    @property
    def root(self) -> str:
        return self.url.rstrip("/").removesuffix("/v1")

    @property
    def path(self) -> str:
        tail = "completions" if self.endpoint is Endpoint.COMPLETIONS else "chat/completions"
        return f"{urlsplit(self.root).path}/v1/{tail}"

    def body(self, request: BenchRequest) -> bytes:
        """The JSON body of a request: greedy, streaming, with usage at the end."""
        fields: dict[str, Any] = {
            "model": self.model,
            "max_tokens": request.output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.endpoint is Endpoint.COMPLETIONS:
            fields["prompt"] = request.token_ids(self.vocabulary, self.seed)
        else:
            fields["messages"] = [{"role": "user", "content": request.text(self.seed)}]
        if self.ignore_eos:
            fields |= {"ignore_eos": True, "min_tokens": request.output_tokens}
        return msgspec.json.encode(fields)
