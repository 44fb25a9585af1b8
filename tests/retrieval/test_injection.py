"""Attacks in retrieved text, kind by kind: none is taken for anything but text. What a model does with the words is
another matter: `python -m benchmarks.injection` counts the orders that can still be read."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.injection.attacks import Attack, attacks
from benchmarks.injection.defences import quoted, try_attack, without_frame

import kvarn
from kvarn.retrieval.quoting import make_boundary
from kvarn.text.tokenizer import Tokenizer

BOUNDARY = make_boundary(b"secret", "attacks")
ATTACKS = attacks(BOUNDARY)
BARE = {each.kind: each for each in ATTACKS if each.kind.startswith("bare call")}
"""Calls that no mark begins: in the formats of Llama 3 they are text like any other."""
UNSEEN = {each.kind: each for each in ATTACKS if each.kind.startswith(("unseen", "order of writing"))}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(Path(kvarn.__file__).parent / "assets" / "kvarn-demo")


@pytest.mark.parametrize("attack", [each for each in ATTACKS if each.kind not in BARE], ids=lambda attack: attack.kind)
def test_a_quoted_attack_is_text_and_nothing_else(attack: Attack, tokenizer: Tokenizer) -> None:
    outcome = try_attack(attack, BOUNDARY, tokenizer)
    assert not outcome.is_structural, outcome


@pytest.mark.parametrize("attack", BARE.values(), ids=lambda attack: attack.kind)
def test_a_bare_call_is_one_only_where_an_answer_of_llama_repeats_it(attack: Attack, tokenizer: Tokenizer) -> None:
    outcome = try_attack(attack, BOUNDARY, tokenizer)
    assert set(outcome.called) >= {"llama3", "pythonic"}
    assert not (outcome.ended or outcome.markers or outcome.cited)


@pytest.mark.parametrize("attack", UNSEEN.values(), ids=lambda attack: attack.kind)
def test_an_order_that_nobody_sees_is_left_out(attack: Attack) -> None:
    assert attack.order not in without_frame(quoted(attack, BOUNDARY), BOUNDARY)


def test_each_kind_is_an_attack_where_nothing_is_quoted(tokenizer: Tokenizer) -> None:
    """Else a kind would prove nothing."""
    for attack in ATTACKS:
        plain = f"{attack.source} {attack.text}"
        seen = plain.replace("\u200b", "")
        assert attack.structure is None or attack.structure in plain or attack.structure in seen
        assert attack.order is None or attack.order in plain or attack.order in seen
    assert len({each.kind for each in ATTACKS}) == len(ATTACKS) >= 60
    assert tokenizer.find_markers(" ".join(each.text for each in ATTACKS))
