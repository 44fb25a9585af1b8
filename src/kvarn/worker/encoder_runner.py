"""Embeddings of many inputs in few passes of an encoder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from kvarn.models import CausalEncoder, Encoder


class EncoderRunner:
    def __init__(self, model: Encoder | CausalEncoder, token_budget: int) -> None:
        """`token_budget`: tokens of one pass at most; an input longer than that runs alone."""
        if token_budget < 1:
            raise ValueError(f"token_budget is {token_budget}: it must be at least 1")
        self._model = model
        self._token_budget = token_budget

    def compile_ahead(self, threads: int) -> None:
        self._model.kernels.device.compile_ahead(self.launch_all_sizes, threads)

    def shutdown(self) -> None:
        self._model.kernels.device.stop_compiling()

    @torch.inference_mode()
    def launch_all_sizes(self) -> None:
        longest = self._model.spec.max_context_length
        for power in range(self._token_budget.bit_length()):
            length = min(1 << power, longest)
            self._encode([[0] * length] * ((1 << power) // length))

    @torch.inference_mode()
    def embed(self, inputs: list[list[int]]) -> list[bytes]:
        """One vector for each input, in order: float32, little-endian. Raises ValueError where an input is empty."""
        empty = [index for index, tokens in enumerate(inputs) if not tokens]
        if empty:
            raise ValueError(f"inputs {empty} are empty: an embedding needs at least one token")
        vectors = [b""] * len(inputs)
        for indices in self._batches([len(tokens) for tokens in inputs]):
            for index, vector in zip(indices, self._encode([inputs[index] for index in indices]), strict=True):
                vectors[index] = vector
        return vectors

    def _batches(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        batch: list[int] = []
        tokens = 0
        for index in sorted(range(len(lengths)), key=lambda i: lengths[i]):
            if batch and tokens + lengths[index] > self._token_budget:
                yield batch
                batch, tokens = [], 0
            batch.append(index)
            tokens += lengths[index]
        if batch:
            yield batch

    def _encode(self, batch: list[list[int]]) -> list[bytes]:
        device, lengths = self._model.kernels.device.torch_device, [0] + [len(tokens) for tokens in batch]
        token_ids = torch.tensor([token for tokens in batch for token in tokens], dtype=torch.int64, device=device)
        starts = torch.tensor(lengths, dtype=torch.int32, device=device).cumsum(0, dtype=torch.int32)
        vectors = self._model.encode(token_ids, starts).to(torch.float32).numpy(force=True)
        return [row.astype("<f4").tobytes() for row in vectors]
