"""Stream the answer to a question from a running server: `python examples/chat.py "What is TTFT?"`."""

from __future__ import annotations

import argparse
import os

from openai import OpenAI


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("question")
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", default="kvarn-demo")
    options = parser.parse_args()
    client = OpenAI(base_url=options.url, api_key=os.environ.get("OPENAI_API_KEY", "none"))
    messages = [{"role": "user", "content": options.question}]
    stream = client.chat.completions.create(model=options.model, messages=messages, stream=True)
    for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            print(chunk.choices[0].delta.content, end="", flush=True)
    print()


if __name__ == "__main__":
    main()
