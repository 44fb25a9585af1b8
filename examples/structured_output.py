"""Get an answer as an object of a class: `python examples/structured_output.py "Who wrote the first program?"`."""

from __future__ import annotations

import argparse
import os

from openai import OpenAI
from pydantic import BaseModel, Field


class Person(BaseModel):
    """Answer that the model must give."""

    name: str = Field(max_length=40)
    born: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("question")
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", default="kvarn-demo")
    options = parser.parse_args()
    client = OpenAI(base_url=options.url, api_key=os.environ.get("OPENAI_API_KEY", "none"))
    messages = [{"role": "user", "content": options.question}]
    answer = client.chat.completions.parse(model=options.model, messages=messages, response_format=Person)
    print(answer.choices[0].message.parsed)


if __name__ == "__main__":
    main()
