"""An EAGLE-3 head over a paged cache against the plain one of the recipe that trains it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from recipes.demo.eagle import AUX_LAYERS, Head, save_head, teach
from safetensors.torch import load_file, save_file

from kvarn.kernels.batch import PagedBatch
from kvarn.models import Decoder, load_model
from kvarn.models.decoder import HiddenStates
from kvarn.models.eagle import load_eagle_head
from kvarn.specs.errors import UnsupportedModelError, WeightShapeError
from tiny_checkpoints import make_decoder

TOKENS = 21
GUESSED = 4
VOCABULARY = list(range(3, 120, 2))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A decoder of four layers, and a head for it with random weights."""
    base, head = tmp_path_factory.mktemp("base"), tmp_path_factory.mktemp("head")
    make_decoder("llama-tied-mha", base, num_hidden_layers=4)
    model = transformers.LlamaForCausalLM.from_pretrained(base, dtype=torch.float32)
    torch.manual_seed(1)
    plain = Head(model, VOCABULARY)
    for parameter in plain.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    save_head(plain, model, VOCABULARY, head)
    return base, head


def load(base: Path, kernels: str) -> Decoder:
    decoder = load_model(base, dtype="float32", kernels=kernels)
    assert isinstance(decoder, Decoder)
    return decoder


def one_sequence(start: int, end: int) -> PagedBatch:
    """Positions of a sequence whose blocks are the second, the third, ... of the cache."""
    tables = np.array([[1, 2, 3]], dtype=np.int32)
    return PagedBatch.of(np.arange(start, end), np.array([0, end - start]), tables, torch.device("cpu"))


def plain_chain(base: Path, head: Path, ids: torch.Tensor, chain: list[int]) -> tuple[torch.Tensor, list[int]]:
    """Hidden states of the recipe's head along a chain of tokens, and the tokens that it guesses."""
    model = transformers.LlamaForCausalLM.from_pretrained(base, dtype=torch.float32)
    plain = Head(model, VOCABULARY)
    stored = load_file(head / "model.safetensors")
    plain.load_state_dict({name: value.float() for name, value in stored.items() if name not in ("d2t", "t2d")})
    states, _, _ = teach(model, ids[None, :TOKENS])
    hidden, past, left, guesses = plain.fc(states), [], [], []
    tokens = ids.tolist() + chain
    for depth in range(GUESSED):
        following = torch.tensor([[tokens[min(at + depth + 1, len(tokens) - 1)] for at in range(TOKENS)]])
        hidden = plain.midlayer(model.model.embed_tokens(following), hidden, depth, past)
        left.append(hidden[0] if depth == 0 else hidden[0, -1:])
        guesses.append(VOCABULARY[int(plain.lm_head(plain.norm(hidden[0, -1])).argmax())])
    return torch.cat(left), guesses


@pytest.mark.parametrize("kernels", ["torch", "cpu"])
@torch.no_grad()
def test_a_chain_of_guesses_is_that_of_the_recipe(folders: tuple[Path, Path], kernels: str) -> None:
    base, folder = folders
    decoder = load(base, kernels)
    head = load_eagle_head(folder, decoder)
    ids = torch.randint(0, 199, (TOKENS + 1,), generator=torch.Generator().manual_seed(2))
    cache, own = decoder.new_kv_cache(8), head.new_kv_cache(8)
    states = HiddenStates(head.aux_layers)
    batch = one_sequence(0, TOKENS)
    decoder.forward(ids[:TOKENS], batch, cache, torch.tensor([TOKENS - 1]), states)
    hidden = head.forward(head.read(states.joined()), ids[1:], batch, own)
    left, guesses = [hidden.clone()], [int(head.guess(hidden[-1:]))]
    for depth in range(1, GUESSED):
        at = TOKENS - 1 + depth
        hidden = head.forward(hidden[-1:].clone(), torch.tensor([guesses[-1]]), one_sequence(at, at + 1), own)
        left.append(hidden.clone())
        guesses.append(int(head.guess(hidden)))
    expected, expected_guesses = plain_chain(base, folder, ids, guesses)
    torch.testing.assert_close(torch.cat(left), expected, rtol=2e-3, atol=2e-3)
    assert guesses == expected_guesses


def test_the_head_changes_nothing_of_the_decoder(folders: tuple[Path, Path]) -> None:
    decoder = load(folders[0], "auto")
    ids, batch, rows = torch.arange(TOKENS), one_sequence(0, TOKENS), torch.arange(TOKENS)
    plain = decoder.forward(ids, batch, decoder.new_kv_cache(8), rows)
    watched = decoder.forward(ids, batch, decoder.new_kv_cache(8), rows, HiddenStates(AUX_LAYERS))
    assert torch.equal(plain, watched)


def changed(folder: Path, target: Path, **fields: object) -> Path:
    """A copy of a head with other fields in its config.json."""
    config = json.loads((folder / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | fields))
    save_file(load_file(folder / "model.safetensors"), target / "model.safetensors")
    return target


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "an EAGLE-3 head is one of LlamaForCausalLMEagle3"),
        ({"vocab_size": 200}, "the served one has 199 and 32"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 9]}}, "but the model has 4"),
        ({"draft_vocab_size": 7}, "has shape"),
    ],
)
def test_a_head_of_another_model_is_refused(
    folders: tuple[Path, Path], tmp_path: Path, fields: dict[str, object], message: str
) -> None:
    with pytest.raises((UnsupportedModelError, WeightShapeError), match=message):
        load_eagle_head(changed(folders[1], tmp_path, **fields), load(folders[0], "auto"))


def test_tokens_beyond_the_vocabulary_are_refused(folders: tuple[Path, Path], tmp_path: Path) -> None:
    folder = changed(folders[1], tmp_path)
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"d2t": tensors["d2t"] + 150}, folder / "model.safetensors")
    with pytest.raises(UnsupportedModelError, match="d2t of the EAGLE-3 head"):
        load_eagle_head(folder, load(folders[0], "auto"))
