"""Let a model call a function, and answer with its result: `python examples/tools.py "What is the weather in Rome?"`."""

from __future__ import annotations

import argparse
import json
import os

from openai import OpenAI

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        "strict": True,
    },
}


def get_weather(city: str) -> str:
    """Weather of a city: a real program asks a service here."""
    del city
    return "12 degrees, rain"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("question")
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", default="kvarn-demo")
    options = parser.parse_args()
    client = OpenAI(base_url=options.url, api_key=os.environ.get("OPENAI_API_KEY", "none"))
    messages = [{"role": "user", "content": options.question}]
    answer = client.chat.completions.create(model=options.model, messages=messages, tools=[TOOL]).choices[0].message
    messages.append(answer.model_dump(exclude_none=True))
    for call in answer.tool_calls or []:
        arguments = json.loads(call.function.arguments)
        result = get_weather(**arguments)
        print(f"{call.function.name}({arguments}) -> {result}")
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    last = client.chat.completions.create(model=options.model, messages=messages, tools=[TOOL], tool_choice="none")
    print(last.choices[0].message.content)


if __name__ == "__main__":
    main()
