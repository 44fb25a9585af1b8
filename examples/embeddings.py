"""Order texts by how near they are to a query: `python examples/embeddings.py QUERY TEXT... --model NAME`.

The server must serve an embedding model: `kvarn serve --model chat=kvarn-demo --model embed=/models/all-MiniLM-L6-v2`.
"""

from __future__ import annotations

import argparse
import os

from openai import OpenAI


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("query")
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", default="embed")
    options = parser.parse_args()
    client = OpenAI(base_url=options.url, api_key=os.environ.get("OPENAI_API_KEY", "none"))
    answer = client.embeddings.create(model=options.model, input=[options.query, *options.texts])
    query, *vectors = [entry.embedding for entry in answer.data]
    scores = [sum(a * b for a, b in zip(query, vector, strict=True)) for vector in vectors]
    for score, text in sorted(zip(scores, options.texts, strict=True), reverse=True):
        print(f"{score:.3f} {text}")


if __name__ == "__main__":
    main()
