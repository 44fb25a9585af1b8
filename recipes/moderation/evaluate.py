"""Measure the packaged classifier on templates that training never saw, and on this repository's own prose.

Usage: python -m recipes.moderation.evaluate [--threshold 0.5]
"""

from __future__ import annotations

import argparse
import random
import tomllib
from pathlib import Path

from recipes.moderation.corpus import sentences, templates

from kvarn.safety.classifier import Classifier, load_classifier
from kvarn.safety.verdict import CATEGORIES

ROOT = Path(__file__).resolve().parents[2]
PER_TEMPLATE = 25
SEED = 7


def held_out_table(classifier: Classifier, threshold: float) -> str:
    """Precision, recall and F1 by category on sentences from held-out templates, as Markdown."""
    rng = random.Random(SEED)
    right, flagged, true = (dict.fromkeys(CATEGORIES, 0) for _ in range(3))
    harmless = wrongly = harmful = found = 0
    for template in templates():
        if not template.held_out:
            continue
        for text in sentences(template, PER_TEMPLATE, rng):
            says = {name for name, score in classifier.score(text).items() if score >= threshold}
            for name in CATEGORIES:
                flagged[name] += name in says
                true[name] += name in template.labels
                right[name] += name in says and name in template.labels
            harmless += not template.labels
            wrongly += not template.labels and bool(says)
            harmful += bool(template.labels)
            found += bool(template.labels) and bool(says)
    lines = ["| category | sentences | precision | recall |", "|---|---|---|---|"]
    for name in CATEGORIES:
        precision = f"{right[name] / flagged[name]:.2f}" if flagged[name] else "-"
        recall = f"{right[name] / true[name]:.2f}" if true[name] else "-"
        lines.append(f"| `{name}` | {true[name]} | {precision} | {recall} |")
    lines.append("")
    lines.append(f"Of {harmful} harmful sentences {found / harmful:.1%} are flagged in some category; of {harmless}")
    lines.append(f"harmless ones, most of them near misses, {wrongly / harmless:.1%} are flagged.")
    return "\n".join(lines)


def prose_line(classifier: Classifier, threshold: float) -> str:
    """How much of harmless text that was not made for this is flagged: the repository's pages, the demo's essays."""
    pages = [path.read_text(encoding="utf-8") for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]]
    essays = tomllib.loads((ROOT / "recipes/demo/texts/essays.toml").read_text(encoding="utf-8"))
    texts = [part for page in [*pages, *map(str, essays.values())] for part in page.split("\n\n") if len(part) > 40]
    flagged = [text for text in texts if max(classifier.score(text).values()) >= threshold]
    share = len(flagged) / len(texts)
    return f"Of {len(texts)} paragraphs of this repository's prose {len(flagged)} are flagged ({share:.1%})."


def main() -> None:
    """Print what docs/guides/safety.md tells."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threshold", type=float, default=0.5)
    options = parser.parse_args()
    classifier = load_classifier()
    print(held_out_table(classifier, options.threshold))
    print(prose_line(classifier, options.threshold))


if __name__ == "__main__":
    main()
