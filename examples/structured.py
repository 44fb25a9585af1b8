"""Get an answer as JSON of a schema: `python examples/structured.py "Who wrote the first program?"`."""

from __future__ import annotations

import argparse
import json
import os

from openai import OpenAI

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 40}, "born": {"type": "integer"}},
    "required": ["name", "born"],
    "additionalProperties": False,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("question")
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", default="kvarn-demo")
    options = parser.parse_args()
    client = OpenAI(base_url=options.url, api_key=os.environ.get("OPENAI_API_KEY", "none"))
    answer = client.chat.completions.create(
        model=options.model,
        messages=[{"role": "user", "content": options.question}],
        response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}},
    )
    person = json.loads(answer.choices[0].message.content)
    print(f"name: {person['name']}, born: {person['born']}")


if __name__ == "__main__":
    main()
