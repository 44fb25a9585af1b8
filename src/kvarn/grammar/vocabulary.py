"""A model's vocabulary as llguidance takes it."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

from llguidance import LLTokenizer

from kvarn.grammar.errors import GrammarError
from kvarn.text.added_tokens import added_tokens, read_tokenizer_text
from kvarn.text.tokenizer import is_marker, read_eos_ids


class Vocabulary:
    """The tokens of one model. Reading a large one takes a second, most of it with the GIL held: it is done before an
    engine serves.

    Special tokens, and others written like `<this>`, are no part of any text here: a grammar names them by id, `<[7]>`.
    llguidance forces the tokens of a known text as the tokenizer splits it, and the tokenizer finds special tokens in a
    text that only looks like them; so it gets them under names that no text contains. `vocab_size` is the width of the
    model's logits; may be more than the tokenizer has. Raises GrammarError where nothing can be enforced.
    """

    def __init__(self, tokenizer: str, vocab_size: int, end_ids: list[int]) -> None:
        self.vocab_size = vocab_size
        self.end_ids = [token for token in end_ids if 0 <= token < vocab_size]
        if not self.end_ids:
            raise GrammarError("the model names no end token, so no answer could end: set eos_token_id in config.json")
        try:
            hidden, self._named = _with_hidden_names(tokenizer, vocab_size)
            self.library = LLTokenizer(hidden, n_vocab=vocab_size, eos_token=self.end_ids)
        except Exception as error:  # of the library plain ones, of a broken file any
            raise GrammarError(f"llguidance cannot read the tokenizer: {error}") from error

    @classmethod
    def load(cls, directory: Path, checkpoint: Path, generation_config: str, vocab_size: int) -> Vocabulary:
        """Read the tokenizer.json of a directory; see `Tokenizer.load`. Raises GrammarError, TokenizerError,
        CheckpointError."""
        text = read_tokenizer_text(directory)
        ids = {token["content"]: token["id"] for token in added_tokens(text)}
        return cls(text, vocab_size, read_eos_ids(directory, checkpoint, generation_config, ids.get))

    def bytes_of(self, token: int) -> bytes:
        """The bytes a token stands for; those of its name where it is a special one."""
        name = self._named.get(token)
        return self.library.decode_bytes([token]) if name is None else name.encode()


def _with_hidden_names(tokenizer: str, vocab_size: int) -> tuple[str, dict[int, str]]:
    """The tokenizer with random names for special tokens, and their own names by id. Tokens that no
    answer can have, since logits end before them, are left out."""
    content = json.loads(tokenizer)
    secret = secrets.token_hex(16)
    named: dict[int, str] = {}
    hidden: dict[str, str] = {}
    content["added_tokens"] = [token for token in content.get("added_tokens") or [] if token["id"] < vocab_size]
    for token in content["added_tokens"]:
        name = token["content"]
        if is_marker(name, token["special"]):
            named[token["id"]] = name
            hidden[name] = token["content"] = f"<|{token['id']}-{secret}|>"
    model = content["model"]
    if isinstance(model["vocab"], dict):
        tokens = model["vocab"]
        model["vocab"] = {hidden.get(token, token): number for token, number in tokens.items() if number < vocab_size}
        if len(model["vocab"]) < len(tokens):
            model["merges"] = [merge for merge in model.get("merges", ()) if _merged(merge) in model["vocab"]]
    else:
        model["vocab"] = [[hidden.get(token, token), score] for token, score in model["vocab"][:vocab_size]]
    if model.get("unk_token") in hidden:
        model["unk_token"] = hidden[model["unk_token"]]
    content["post_processor"] = None  # it puts special tokens around texts, by their own names
    return json.dumps(content, ensure_ascii=False), named


def _merged(merge: str | list[str]) -> str:
    return "".join(merge.split(" ") if isinstance(merge, str) else merge)
