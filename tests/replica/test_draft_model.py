"""Loading of a draft model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import kvarn
from kvarn.replica.server.startup.proposer import DraftModelError, check_vocabulary

ASSETS = Path(kvarn.__file__).parent / "assets"


def test_a_draft_model_with_another_tokenizer_is_refused(tmp_path: Path) -> None:
    check_vocabulary(ASSETS / "kvarn-demo-draft", ASSETS / "kvarn-demo")
    other = tmp_path / "other"
    shutil.copytree(ASSETS / "kvarn-demo-draft", other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = list(vocabulary)[300:302]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(DraftModelError, match=r"2 of 4096 tokens differ.*same family"):
        check_vocabulary(other, ASSETS / "kvarn-demo")
    (other / "tokenizer.json").unlink()
    with pytest.raises(DraftModelError, match=r"need a tokenizer\.json"):
        check_vocabulary(other, ASSETS / "kvarn-demo")
