"""A directory of safetensors, memory-mapped. Nothing is unpickled, ever."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open

from kvarn.kernels.device.memory import GIB, usable_memory
from kvarn.specs.errors import CheckpointError, MissingWeightError, NotEnoughMemoryError, WeightShapeError
from kvarn.specs.families.hf_config import CheckpointKind
from kvarn.text.json_file import read_json, validate

Progress = Callable[[str, float], None]
Config = TypeVar("Config", bound=CheckpointKind)


class Checkpoint:
    """Tensors by name, read when asked for."""

    def __init__(self, path: Path, progress: Progress | None = None, stage: str = "load weights") -> None:
        self.path = path
        self.config = read_json(path / "config.json", required=True)
        self._files: dict[str, tuple[Any, str]] = {}
        """The open file of each tensor, and its name there."""
        self.files = (path / "config.json", *_weight_files(path))
        for file in self.files[1:]:
            try:
                handle: Any = safe_open(file, framework="pt")
            except (SafetensorError, OSError) as error:
                raise CheckpointError(f"{file} is not a readable safetensors file: {error}") from error
            except RuntimeError as error:
                size, memory = file.stat().st_size / GIB, usable_memory() / GIB
                raise NotEnoughMemoryError(
                    f"{file} of {size:.1f} GiB cannot be mapped: this machine has {memory:.1f} GiB of memory"
                ) from error
            self._files.update({name: (handle, name) for name in handle.keys()})  # noqa: SIM118 - not a dictionary
        if "embed_tokens.weight" in self._files:  # a decoder that was saved without its head
            self._files = {f"model.{name}": place for name, place in self._files.items()}
        self._progress = progress
        self._stage = stage
        self._read: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def validated(self, model: type[Config], defaults: Mapping[str, Any] | None = None) -> Config:
        """config.json as `model` declares it, with `defaults` for fields that it leaves out.

        Raises CheckpointError, which names the wrong field.
        """
        return validate(model, {**(defaults or {}), **self.config}, self.path / "config.json")

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(handle.get_slice(own).get_shape()) for name, (handle, own) in self._files.items()}

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """One whole tensor, mapped from its file in the type it is stored in.

        Raises MissingWeightError, or WeightShapeError where it has not the shape that config.json implies.
        """
        tensor = self.stored(name)
        if tuple(tensor.shape) != shape:
            raise WeightShapeError(name, shape, tuple(tensor.shape))
        return tensor

    def stored(self, name: str) -> torch.Tensor:
        """One whole tensor of whatever shape. Raises MissingWeightError."""
        if name not in self._files:
            raise MissingWeightError(name)
        handle, own = self._files[name]
        tensor: torch.Tensor = handle.get_tensor(own)
        self._note(name)
        return tensor

    def part(self, name: str, index: int, shape: tuple[int, ...]) -> torch.Tensor:
        """One of the tensors of this shape that a tensor holds side by side. Raises as `tensor`."""
        if name not in self._files:
            raise MissingWeightError(name)
        handle, own = self._files[name]
        stored = handle.get_slice(own)
        found = tuple(stored.get_shape())
        if found[1:] != shape or found[0] <= index:
            raise WeightShapeError(name, (max(found[0], index + 1), *shape), found)
        self._note(name)
        part: torch.Tensor = stored[index]
        return part

    def finish(self) -> None:
        if self._progress is not None:
            self._progress(self._stage, 1.0)

    def _note(self, name: str) -> None:
        self._read.add(name)
        if self._progress is not None:
            self._progress(self._stage, len(self._read) / len(self._files))


def _weight_files(path: Path) -> list[Path]:
    single, index = path / "model.safetensors", path / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if not index.is_file():
        raise CheckpointError(
            f"{path} holds neither model.safetensors nor model.safetensors.index.json: "
            "Kvarn reads safetensors only; convert other formats first"
        )
    shards = read_json(index).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(name, str) and Path(name).name for name in shards.values()):
        raise CheckpointError(f"{index} needs a weight_map: an object from tensors' names to files' names")
    files = [path / Path(name).name for name in sorted(set(shards.values()))]
    for file in files:
        if not file.is_file():
            raise CheckpointError(f"{index} names {file.name}, which is not in {path}: the download may be incomplete")
    return files
