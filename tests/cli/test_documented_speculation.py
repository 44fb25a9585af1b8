"""The commands of docs/guides/speculation.md, run as they are printed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import httpx
import pytest

from profiles import thorough

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "speculation.md"
DRAFT, HEAD = re.findall(r"^ +kvarn serve (kvarn-demo .*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
SMALL = ("--max-model-len", "256", "--kv-cache-memory-bytes", "64M")


@pytest.mark.parametrize("command", [DRAFT, thorough(HEAD)])
def test_a_packaged_model_guesses_the_tokens_of_the_demo(serve, command: str) -> None:
    served = serve(*shlex.split(command), *SMALL)
    ask = {"model": "kvarn-demo", "messages": [{"role": "user", "content": "What is Kvarn?"}], "max_tokens": 8}
    answer = httpx.post(f"{served.url}/v1/chat/completions", json=ask, timeout=60)
    assert answer.status_code == 200, answer.text
    assert served.stop() == 0
