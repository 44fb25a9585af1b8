"""Words are the same for a text however it is spelled, in scripts with spaces and without."""

from __future__ import annotations

import pytest

from kvarn.retrieval.index.words import pack_words, query_hashes, unpack_words, word_hash, words


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The kv_cache_gib of v2.5!", ["the", "kv", "cache", "gib", "of", "v2", "5"]),
        ("Crème BRÛLÉE", ["creme", "brulee"]),
        ("e\u0301te\u0301 \ufb01n", ["ete", "fin"]),
        ("Straße", ["strasse"]),
        ("Ένα", ["ενα"]),
        ("東京都 GPU", ["東京", "京都", "gpu"]),
        ("は", ["は"]),
        ("서울은", ["서울", "울은"]),
        ("हिन्दी", ["हिन्दी"]),
        ("", []),
        ("... \n--", []),
    ],
)
def test_a_text_has_these_words(text: str, found: list[str]) -> None:
    assert words(text) == found


def test_words_are_packed_with_their_counts() -> None:
    hashes, counts = unpack_words(pack_words("to be or not to be"))
    expected = {word_hash("to"): 2, word_hash("be"): 2, word_hash("or"): 1, word_hash("not"): 1}
    assert dict(zip(hashes.tolist(), counts.tolist(), strict=True)) == expected
    assert hashes.tolist() == sorted(hashes.tolist())
    assert set(query_hashes("red blue red")) == {word_hash("red"), word_hash("blue")}


def test_stop_words_count_where_a_query_has_no_others() -> None:
    assert query_hashes("What is the colour of a meadow?").tolist() == query_hashes("meadow colour").tolist()
    assert len(query_hashes("To be, or not to be")) == 4


def test_a_text_without_words_and_one_with_half_a_character_are_packed() -> None:
    assert pack_words("!") == b""
    assert len(pack_words("a \ud800")) == len(pack_words("a"))
