"""Orders hidden in texts, by kind: what is left of each in a prompt.

python -m benchmarks.injection
python -m benchmarks.injection --kinds        # each kind by itself
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path

import kvarn
from benchmarks.injection.attacks import Attack, attacks
from benchmarks.injection.defences import Outcome, try_attack
from kvarn.retrieval.quoting import make_boundary
from kvarn.text.tokenizer import Tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", action="store_true", help="print a row for each kind")
    options = parser.parse_args()
    tokenizer = Tokenizer.load(Path(kvarn.__file__).parent / "assets" / "kvarn-demo")
    boundary = make_boundary(b"benchmark", "attacks")
    tried = [(attack, try_attack(attack, boundary, tokenizer)) for attack in attacks(boundary)]
    print_groups(tried)
    if options.kinds:
        print_kinds(tried)


def print_groups(tried: list[tuple[Attack, Outcome]]) -> None:
    """How many of each group got through, by way."""
    groups: dict[str, list[tuple[Attack, Outcome]]] = defaultdict(list)
    for attack, outcome in tried:
        groups[attack.group].append((attack, outcome))
    print("| group | kinds | taken for more than text | order still readable |")
    print("|---|---|---|---|")
    for name, rows in [*groups.items(), ("all", tried)]:
        structural = sum(outcome.is_structural for _, outcome in rows)
        claims = sum(attack.structure is not None for attack, _ in rows)
        orders = sum(attack.order is not None for attack, _ in rows)
        obeyed = sum(outcome.obeyed for _, outcome in rows)
        print(f"| {name} | {len(rows)} | {structural} of {claims} | {obeyed} of {orders} |")


def print_kinds(tried: list[tuple[Attack, Outcome]]) -> None:
    print("\n| kind | taken for more than text | order still readable |")
    print("|---|---|---|")
    for attack, outcome in tried:
        structural = "no" if not outcome.is_structural else ", ".join(outcome.called) or "yes"
        readable = "none" if attack.order is None else "yes" if outcome.obeyed else "no"
        print(f"| {attack.kind} | {structural if attack.structure else 'not tried'} | {readable} |")


if __name__ == "__main__":
    main()
