"""Ask questions of which the server remembers those before: `python examples/conversation.py "Who are you?" "Why?"`."""

from __future__ import annotations

import argparse
import os

from openai import OpenAI


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("questions", nargs="+")
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", default="kvarn-demo")
    options = parser.parse_args()
    client = OpenAI(base_url=options.url, api_key=os.environ.get("OPENAI_API_KEY", "none"))
    before = None
    for question in options.questions:
        response = client.responses.create(model=options.model, input=question, previous_response_id=before)
        print(f"{question} {response.output_text}")
        before = response.id


if __name__ == "__main__":
    main()
