"""Keys and limits on the paths of Anthropic's API: its headers, its errors."""

from __future__ import annotations

from typing import Any

import pytest

from lazy_modules import LazyModule

anthropic = LazyModule("anthropic")

ASK: dict[str, Any] = {"model": "tiny", "max_tokens": 9, "messages": [{"role": "user", "content": "Hej"}]}


def test_a_wrong_key_is_told_in_its_words(api: Any) -> None:
    with (
        anthropic.Anthropic(base_url=api.server.url, api_key="kv-wrong", max_retries=0) as claude,
        pytest.raises(anthropic.AuthenticationError) as refused,
    ):
        claude.messages.create(**ASK)
    body: Any = refused.value.body
    assert body["type"] == "error" and body["error"]["type"] == "authentication_error" and body["request_id"]
    openai_shape = api.client("kv-wrong").post("/v1/chat/completions", json=ASK).json()
    assert openai_shape["error"]["type"] == "invalid_request_error"
