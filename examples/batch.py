"""Answer several questions as one batch and print the answers: `python examples/batch.py "What is TTFT?" "2 + 2?"`."""

from __future__ import annotations

import argparse
import json
import os
import time

from openai import OpenAI


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("questions", nargs="+")
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", default="kvarn-demo")
    options = parser.parse_args()
    client = OpenAI(base_url=options.url, api_key=os.environ.get("OPENAI_API_KEY", "none"))
    lines = []
    for number, question in enumerate(options.questions):
        body = {"model": options.model, "messages": [{"role": "user", "content": question}]}
        line = {"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": body}
        lines.append(json.dumps(line))
    file = client.files.create(file=("questions.jsonl", "\n".join(lines).encode()), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    while batch.status not in ("completed", "failed", "expired", "cancelled"):
        time.sleep(0.2)
        batch = client.batches.retrieve(batch.id)
    if batch.output_file_id is None:
        raise SystemExit(f"the batch is {batch.status}: {batch.errors or batch.request_counts}")
    for line in client.files.content(batch.output_file_id).text.splitlines():
        answer = json.loads(line)
        text = answer["response"]["body"]["choices"][0]["message"]["content"]
        print(f"{options.questions[int(answer['custom_id'])]} {text}")


if __name__ == "__main__":
    main()
