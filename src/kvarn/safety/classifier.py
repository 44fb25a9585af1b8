"""The built-in classifier: logistic regression over hashed n-grams, made by `recipes/moderation`.

Small enough to look at every answer while it is written, and not to be mistaken for a large one: docs/guides/safety.md
tells what it finds and what it misses.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load

from kvarn.safety.features import ngrams, normalise
from kvarn.safety.verdict import CATEGORIES

WINDOWS = (48, 144)  # bytes of normalised text that are looked at together: about a clause, about two or three

SHORTEST = 24  # bytes that a shorter text counts as, so that no single word decides

_SENTENCE_END = re.compile(r"(?<=[.!?。！？])\s+|\n+")

_BLOCK = 16 * 1024  # bytes of text worked on at once: bounds memory to some megabytes

Scores = npt.NDArray[np.float32]


class Classifier:
    """Scores texts.

    A window's logit in a category is `bias + sum(weights of its n-grams) / sqrt(its bytes)`; a text's score is that of
    its worst window, and each sentence is a window too, so that it weighs as much in a long text as alone. Sums over
    windows are differences of running sums: the time is linear in the text's length.

    Args:
        weights: `[buckets, categories]`, one byte each.
        scale: `[categories]`: what a unit of the weights is worth.
        bias: `[categories]`.
    """

    def __init__(self, weights: npt.NDArray[np.int8], scale: Scores, bias: Scores) -> None:
        self._weights = weights.astype(np.float32) * scale
        self._bias = bias

    def score(self, text: str) -> dict[str, float]:
        sentences = [sentence for each in _SENTENCE_END.split(text) if len(sentence := normalise(each)) > 2]
        if not sentences:
            return dict.fromkeys(CATEGORIES, 0.0)
        joined, borders = b"".join(sentences), np.cumsum([0, *map(len, sentences)])
        overlap = max(WINDOWS)
        worst = np.full(len(CATEGORIES), -np.inf, np.float32)
        for start in range(0, max(1, len(joined) - overlap), _BLOCK):
            block = joined[start : start + _BLOCK + overlap]
            inside = borders[(borders >= start) & (borders <= start + len(block))] - start
            worst = np.maximum(worst, self._worst_logits(block, inside))
        scores = 1 / (1 + np.exp(-np.clip(worst, -30, 30)))
        return dict(zip(CATEGORIES, map(float, scores), strict=True))

    def _worst_logits(self, block: bytes, borders: npt.NDArray[np.intp]) -> Scores:
        buckets, places = ngrams(block)
        weights = self._weights[buckets[np.argsort(places, kind="stable")]]
        running = np.zeros((len(weights) + 1, weights.shape[1]), np.float32)
        np.cumsum(weights, axis=0, dtype=np.float32, out=running[1:])
        until = np.concatenate(([0], np.cumsum(np.bincount(places, minlength=len(block)))))
        starts, ends = windows(len(block))
        short = np.flatnonzero(np.diff(borders) <= max(WINDOWS))
        starts, ends = np.append(starts, borders[short]), np.append(ends, borders[short + 1])
        sums = running[until[ends]] - running[until[starts]]
        lengths = np.maximum(ends - starts, SHORTEST).astype(np.float32)
        return np.asarray((sums / np.sqrt(lengths)[:, None] + self._bias).max(axis=0), np.float32)


def windows(size: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Starts and ends of the windows over a text of so many bytes: each kind moves on by a quarter of itself."""
    starts: list[int] = []
    ends: list[int] = []
    for window in WINDOWS:
        for start in range(0, max(1, size - window + window // 4), window // 4):
            starts.append(start)
            ends.append(min(start + window, size))
    return np.array(starts), np.array(ends)


@cache
def load_classifier() -> Classifier:
    tensors = load((files("kvarn") / "assets" / "moderation.safetensors").read_bytes())
    return Classifier(tensors["weights"], tensors["scale"], tensors["bias"])
