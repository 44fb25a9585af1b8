"""Let a model call a function of this program: `python examples/tools.py "What is the weather in Stockholm?"`."""

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
    },
}


def get_weather(city: str) -> str:
    return f"4 degrees and rain in {city}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("question")
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", default="kvarn-demo")
    options = parser.parse_args()
    client = OpenAI(base_url=options.url, api_key=os.environ.get("OPENAI_API_KEY", "none"))
    messages = [{"role": "user", "content": options.question}]
    message = client.chat.completions.create(model=options.model, messages=messages, tools=[TOOL]).choices[0].message
    messages.append(message.to_dict())
    for call in message.tool_calls or []:
        result = get_weather(**json.loads(call.function.arguments))
        print(f"called {call.function.name}({call.function.arguments}): {result}")
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    answer = client.chat.completions.create(model=options.model, messages=messages, tools=[TOOL], tool_choice="none")
    print(answer.choices[0].message.content)


if __name__ == "__main__":
    main()
