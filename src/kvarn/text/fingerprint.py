"""Which checkpoint this is: a short digest that changes when the model does."""

from __future__ import annotations

import hashlib
from pathlib import Path

_WHOLE = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
_MAX_WHOLE_BYTES = 64 * 1024 * 1024
_SAMPLES = 16
_SAMPLE_BYTES = 1 << 16
_DIGITS = 16


def checkpoint_fingerprint(directory: Path) -> str:
    """The digest of a checkpoint, 16 hexadecimal digits.

    Small files are read whole. Of larger ones, such as files of weights, the size, the beginning (where safetensors
    name their tensors) and samples of 64 KiB spread evenly over them are: training changes all of them, and reading
    gigabytes at each start would take longer than the start.

    Raises:
        OSError: A file cannot be read.
    """
    digest = hashlib.sha256()
    for path in sorted(directory.iterdir()):
        if path.name in _WHOLE and path.stat().st_size <= _MAX_WHOLE_BYTES:
            _add(digest, path, path.read_bytes())
        elif path.name in _WHOLE or path.suffix == ".safetensors":
            _add(digest, path, _samples(path))
    return digest.hexdigest()[:_DIGITS]


def _add(digest: hashlib._Hash, path: Path, content: bytes) -> None:
    digest.update(f"{path.name}\0{path.stat().st_size}\0{len(content)}\0".encode())
    digest.update(content)


def _samples(path: Path) -> bytes:
    size = path.stat().st_size
    stride = max(_SAMPLE_BYTES, size // _SAMPLES)
    with path.open("rb") as file:
        parts = []
        for start in range(0, size, stride):
            file.seek(start)
            parts.append(file.read(_SAMPLE_BYTES))
    return b"".join(parts)
