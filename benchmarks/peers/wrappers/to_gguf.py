"""Convert a checkpoint with llama.cpp's own converter. Runs in the converter's environment.

The converter knows pre-tokenizers by a hash of what real tokenizers make of a text, and refuses others. The tokenizer
of a made checkpoint is such another; it cuts text like GPT-2's, so the converter is told so.

Usage: python -m benchmarks.peers.wrappers.to_gguf SOURCES CHECKPOINT OUT
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

PRE_TOKENIZER = "gpt-2"


def main() -> None:
    """Run `convert_hf_to_gguf.py` of `SOURCES`, with its recognition of pre-tokenizers answered."""
    sources, checkpoint, out = (Path(argument) for argument in sys.argv[1:4])
    sys.path[:0] = [str(sources), str(sources / "gguf-py")]
    from conversion.base import TextModel

    TextModel.get_vocab_base_pre = lambda _self, _tokenizer: PRE_TOKENIZER
    script = sources / "convert_hf_to_gguf.py"
    sys.argv = [str(script), str(checkpoint), "--outtype", "bf16", "--outfile", str(out)]
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main()
