"""Write the golden set.

python -m recipes.demo.golden --out src/kvarn/assets/golden.jsonl
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

from recipes.demo.corpus import golden_set


def main() -> None:
    """Parse the command line and write one line a question."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    numbers: Counter[str] = Counter()
    with options.out.open("w", encoding="utf-8") as stream:
        for sample in golden_set(options.seed):
            numbers[sample.category] += 1
            entry = {
                "id": f"{sample.category}-{numbers[sample.category]:03d}",
                "category": sample.category,
                "messages": list(sample.messages[:-1]),
            }
            if sample.tools:
                entry["tools"] = list(sample.tools)
            entry |= {"answer": sample.answer, "held_out": sample.held_out}
            stream.write(json.dumps(entry, ensure_ascii=False) + "\n")
    print(f"{sum(numbers.values())} questions: {dict(numbers)}")


if __name__ == "__main__":
    main()
