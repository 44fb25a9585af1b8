"""Files, batches and reranking with the real server, its engines and the official client."""

from __future__ import annotations

import json
import time
from typing import Any

import openai

CHAT = "/v1/chat/completions"
LINES = 12


def line(number: int) -> str:
    body = {
        "model": "kvarn-demo",
        "messages": [{"role": "user", "content": f"What is {number} + 2?"}],
        "max_tokens": 16,
        "temperature": 0,
    }
    return json.dumps({"custom_id": f"sum-{number}", "method": "POST", "url": CHAT, "body": body})


def completed(sdk: openai.OpenAI, batch_id: str) -> Any:
    deadline = time.monotonic() + 90
    while (batch := sdk.batches.retrieve(batch_id)).status != "completed":
        assert batch.status in ("validating", "in_progress", "finalizing") and time.monotonic() < deadline, batch
        time.sleep(0.2)
    return batch


def test_a_batch_says_what_the_same_requests_say_one_by_one(sdk):
    content = "\n".join(line(number) for number in range(LINES)).encode()
    file = sdk.files.create(file=("sums.jsonl", content), purpose="batch")
    made = sdk.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    beside = sdk.chat.completions.create(**json.loads(line(3))["body"])  # an interactive request is served meanwhile
    batch = completed(sdk, made.id)
    output = [json.loads(text) for text in sdk.files.content(batch.output_file_id).text.splitlines()]
    assert [each["custom_id"] for each in output] == [f"sum-{number}" for number in range(LINES)]
    assert output[3]["response"]["body"]["choices"][0]["message"]["content"] == beside.choices[0].message.content
    tokens = sum(each["response"]["body"]["usage"]["total_tokens"] for each in output)
    assert batch.usage.total_tokens == tokens
