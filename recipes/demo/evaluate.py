"""Measure a finished checkpoint on the golden set with transformers, greedily and after bf16 rounding.

    python -m recipes.demo.evaluate --model src/kvarn/assets/kvarn-demo --golden src/kvarn/assets/golden.jsonl \
        --draft src/kvarn/assets/kvarn-demo-draft

With `--adapter src/kvarn/assets/adapters/pirate` it measures, on the questions whose answers are prose, how often the
adapted model gives exactly the right answer in the adapter's style.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from recipes.demo.styles import STYLES
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer


@dataclass(frozen=True)
class Graded:
    """A golden question, what the model said, and the token ids of both sides."""

    entry: dict[str, Any]
    said: str
    prompt: torch.Tensor
    output: torch.Tensor

    @property
    def right(self) -> bool:
        """Whether the answer is exactly the expected text."""
        return bool(self.said == self.entry["answer"])


def read_golden(path: Path) -> list[dict[str, Any]]:
    """The lines of a golden set."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def load(folder: Path) -> tuple[Any, Any]:
    """Tokenizer and model; bf16 weights computed in fp32, which is quicker on most CPUs."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).float().eval()
    return AutoTokenizer.from_pretrained(folder), model


@torch.no_grad()
def merge_adapter(model: Any, folder: Path) -> None:
    """Add an adapter's low-rank products to the weights of a model."""
    config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    tensors = load_file(folder / "adapter_model.safetensors")
    for name, a in tensors.items():
        if name.endswith(".lora_A.weight"):
            b = tensors[name.replace(".lora_A.", ".lora_B.")]
            target = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            weight = model.get_submodule(target).weight
            weight += (config["lora_alpha"] / config["r"]) * (b.float() @ a.float())


def restyled(entries: list[dict[str, Any]], style: str) -> list[dict[str, Any]]:
    """The golden questions answered in prose, with their answers in a style."""
    plain = [entry for entry in entries if "tools" not in entry and entry["category"] != "extraction"]
    return [entry | {"answer": STYLES[style](entry["answer"])} for entry in plain]


@torch.no_grad()
def grade(tokenizer: Any, model: Any, entries: list[dict[str, Any]]) -> list[Graded]:
    """Answer every question greedily."""
    graded = []
    for entry in entries:
        text = tokenizer.apply_chat_template(
            entry["messages"], tools=entry.get("tools"), tokenize=False, add_generation_prompt=True
        )
        prompt = torch.tensor([tokenizer.encode(text, add_special_tokens=False)])
        output = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=320, do_sample=False)
        new = output[0, prompt.shape[1] :]
        graded.append(Graded(entry, tokenizer.decode(new, skip_special_tokens=True), prompt[0], new))
    return graded


def report(graded: list[Graded]) -> str:
    """A Markdown table: right answers per category, held-out ones apart."""
    counts: dict[tuple[str, bool], list[bool]] = defaultdict(list)
    for item in graded:
        counts[item.entry["category"], item.entry["held_out"]].append(item.right)

    def cell(results: list[bool]) -> str:
        return f"{sum(results)}/{len(results)}" if results else "-"

    lines = ["| category | seen in training | held out |", "|---|---|---|"]
    for category in sorted({category for category, _ in counts}):
        lines.append(f"| {category} | {cell(counts[category, False])} | {cell(counts[category, True])} |")
    totals = [
        [right for (_, held), values in counts.items() if held == side for right in values] for side in (False, True)
    ]
    lines.append(f"| **all** | {cell(totals[0])} | {cell(totals[1])} |")
    right = sum(item.right for item in graded)
    return "\n".join([*lines, "", f"Exact match overall: {right}/{len(graded)} = {right / len(graded):.1%}"])


@torch.no_grad()
def draft_agreement(draft: Any, graded: list[Graded], lookahead: int = 4) -> tuple[float, float]:
    """How well the draft follows the large model's greedy answers.

    Returns the share of tokens the draft predicts when given everything before them, and the mean number of tokens
    one verification yields when the draft proposes `lookahead` tokens (the large model's own token included).
    """
    agreeing, tokens, passes = 0, 0, 0
    for item in graded:
        ids = torch.cat([item.prompt, item.output])[None]
        guesses = draft(ids).logits[0, len(item.prompt) - 1 : -1].argmax(-1)
        hits = (guesses == item.output).tolist()
        agreeing += sum(hits)
        tokens += len(hits)
        at = 0
        while at < len(hits):
            run = 0
            while run < lookahead and at + run < len(hits) and hits[at + run]:
                run += 1
            at += run + 1
            passes += 1
    return agreeing / tokens, tokens / passes


def main() -> None:
    """Parse the command line, grade and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--golden", type=Path, required=True)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--adapter", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--every", type=int, default=1, help="grade every n-th question only")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    tokenizer, model = load(options.model)
    entries = read_golden(options.golden)
    if options.adapter:
        merge_adapter(model, options.adapter)
        entries = restyled(entries, options.adapter.name)
    graded = grade(tokenizer, model, entries[:: options.every])
    for item in graded:
        if not item.right:
            print(f"{item.entry['id']}: expected {item.entry['answer']!r}\n  said {item.said!r}")
    print(report(graded))
    if options.draft:
        share, yielded = draft_agreement(load(options.draft)[1], graded)
        print(f"\nDraft agreement: {share:.1%} of tokens; {yielded:.2f} tokens per verification of 4 proposals")


if __name__ == "__main__":
    main()
