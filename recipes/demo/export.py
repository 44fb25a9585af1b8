"""Write a training checkpoint, finished or not, as a Hugging Face folder in bf16.

python -m recipes.demo.export --name kvarn-demo --work recipes/demo/out --out src/kvarn/assets
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from recipes.demo.shapes import SHAPES, make_config, save_model
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM


def main() -> None:
    """Parse the command line and write the folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--name", choices=tuple(SHAPES), required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(options.work / "tokenizer.json"))
    model = LlamaForCausalLM(make_config(options.name, tokenizer))
    saved = torch.load(options.work / f"{options.name}.pt", weights_only=True)
    model.load_state_dict(saved["model"])
    save_model(model, tokenizer, options.out / options.name)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{options.name}: step {saved['step']}, {parameters} parameters")


if __name__ == "__main__":
    main()
