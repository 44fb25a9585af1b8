"""Requests to a gateway over fake replicas, and their answers read."""

from __future__ import annotations

import json
from typing import Any

import httpx

CHAT = "/v1/chat/completions"
HELLO: list[dict[str, Any]] = [{"role": "user", "content": "Hej"}]


def chat(text: str = "x", **fields: Any) -> dict[str, Any]:
    """The body of a chat with one message."""
    return {"model": "tiny", "messages": [{"role": "user", "content": text}], **fields}


def prompt_of(server: Any, number: int = -1) -> str:
    """The prompt that the engine of `tiny` was given, the last unless a number says otherwise."""
    tokens = server.chat.submitted[number].prompt_token_ids
    text: str = server.served["tiny"].text.tokenizer.decode(tokens, skip_special_tokens=False)
    return text


def events_of(answer: httpx.Response) -> list[dict[str, Any]]:
    """The data of a stream's events, without the end mark."""
    assert answer.status_code == 200, answer.text
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]


def code_of(answer: httpx.Response) -> tuple[int, str]:
    """Status and code of an error."""
    return answer.status_code, answer.json()["error"]["code"]


def param_of(answer: httpx.Response) -> tuple[int, str | None]:
    """Status of an error and the field that it names."""
    return answer.status_code, answer.json()["error"]["param"]


def metric(client: httpx.Client, name: str, **labels: str) -> float:
    """The value of a metric with exactly these labels; 0 where it has none yet."""
    pairs = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
    wanted = f"{name}{{{pairs}}}" if labels else name
    found = [line for line in client.get("/metrics").text.splitlines() if line.startswith(wanted + " ")]
    return float(found[0].split()[-1]) if found else 0.0
