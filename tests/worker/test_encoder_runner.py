from typing import Any

import numpy as np
import pytest
import torch

from kvarn.kernels.backend import torch_kernels
from kvarn.worker.encoder_runner import EncoderRunner


class MeanEncoder:
    """The vector of a text: mean and number of its tokens; keeps the lengths of each pass."""

    kernels = torch_kernels()

    def __init__(self) -> None:
        self.passes: list[list[int]] = []

    def encode(self, token_ids: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        texts = [token_ids[a:b] for a, b in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)]
        self.passes.append([len(text) for text in texts])
        return torch.tensor([[float(text.float().mean()), float(len(text))] for text in texts])


def test_vectors_come_in_the_order_of_the_inputs_as_little_endian_float32() -> None:
    inputs = [[7] * n for n in (9, 1, 30, 4)] + [[2, 4]]
    encoder: Any = MeanEncoder()
    vectors = EncoderRunner(encoder, token_budget=16).embed(inputs)
    found = [np.frombuffer(vector, dtype="<f4").tolist() for vector in vectors]
    assert found == [[7, 9], [7, 1], [7, 30], [7, 4], [3, 2]]


def test_passes_hold_similar_lengths_within_the_budget_and_longer_inputs_run_alone() -> None:
    encoder: Any = MeanEncoder()
    EncoderRunner(encoder, token_budget=16).embed([[1] * n for n in (30, 4, 9, 8, 2, 1)])
    assert encoder.passes == [[1, 2, 4, 8], [9], [30]]


def test_no_inputs_give_no_vectors_and_an_empty_input_is_an_error() -> None:
    encoder: Any = MeanEncoder()
    assert EncoderRunner(encoder, token_budget=16).embed([]) == []
    with pytest.raises(ValueError, match=r"inputs \[1\] are empty"):
        EncoderRunner(encoder, token_budget=16).embed([[1], []])
    with pytest.raises(ValueError, match="at least 1"):
        EncoderRunner(encoder, token_budget=0)
