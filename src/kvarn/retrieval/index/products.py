"""Products of vectors with a query's, on one thread: a BLAS that shares them among threads makes each search wait for
the slowest of them, many times as long where other work has the cores."""

from __future__ import annotations

import numpy as np

from kvarn.retrieval.index.arrays import Array

_ONE_THREAD = 9000
"""Numbers of a matrix up to which OpenBLAS takes one thread for its product with a vector (9216), less a little."""
_BLOCK = 2048
"""Rows of float16 that are converted at once: 3 MB of 384 numbers, which a processor's cache holds."""


def products(vectors: Array, query: Array) -> Array:
    """Products [n], float32, of vectors [n, d] (float32 or float16) with a query [d]; sums are float32."""
    query = np.asarray(query, dtype=np.float32)
    if vectors.dtype == np.float32:
        return _products(vectors, query)
    found = np.empty(len(vectors), np.float32)
    for first in range(0, len(vectors), _BLOCK):
        part = slice(first, first + _BLOCK)
        found[part] = _products(vectors[part].astype(np.float32), query)
    return found


def _products(vectors: Array, query: Array) -> Array:
    count, size = vectors.shape
    rows = max(1, _ONE_THREAD // max(1, size))
    whole = count - count % rows
    blocks = np.matmul(vectors[:whole].reshape(-1, rows, size), query).reshape(whole)
    return np.concatenate([blocks, np.matmul(vectors[whole:], query)])
