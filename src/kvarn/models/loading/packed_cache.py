"""Packed weights kept in a directory, so that the next start neither quantizes nor packs anything.

One safetensors file a model and rank. Its name holds a hash of everything that its content follows from, so a file is
never wrong, only unused.

The file is written here and not by the safetensors library because packed weights must begin on 64-byte boundaries:
the header is padded with blanks (which the format allows), and each packed weight is a multiple of 64 bytes long.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import secrets
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError, safe_open

from kvarn.clock import SYSTEM_CLOCK
from kvarn.kernels.errors import KernelError
from kvarn.kernels.linear import Linear
from kvarn.kernels.packer import WeightPacker
from kvarn.models.loading.packed_directory import FRESH_S, SUFFIX, make_room, only_writer

WRITER = "kvarn-packed-weights"
"""Name of the threads that write files."""
_CODE = tuple(Path(__file__).parents[2] / package for package in ("models", "kernels", "shapes"))
"""Folders of the code that reads, joins, quantizes and packs weights."""
_ALIGNMENT = 64
_TYPES = {torch.uint8: "U8", torch.float32: "F32", torch.int64: "I64"}
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class PackedCache:
    """The packed linear layers of one model and rank, by name."""

    file: Path
    packer: WeightPacker
    is_named: bool
    """The user named the directory: all of its disk may be taken, and what fails there is a warning."""
    _was_there: bool = False
    """An earlier start has left a file, whatever is in it."""
    _stored: Any = None  # the open file of an earlier start
    _stored_layers: dict[str, Any] = field(default_factory=dict)
    """By name: the layer's form, and the names of its tensors."""
    _linears: dict[str, Linear] = field(default_factory=dict)
    _complete: bool = True

    @staticmethod
    def open(
        directory: Path, model: str, origin: Iterable[object], packer: WeightPacker, *, is_named: bool = True
    ) -> PackedCache:
        """The cache of a model in `directory`.

        Args:
            directory: Made when something is saved.
            model: Begins the file's name.
            origin: All that the packed bytes follow from, beside the packer's layout and the code that makes them.
            packer: Packs what is not kept.
            is_named: See above.
        """
        text = json.dumps([packer.layout, code_digest(), *map(str, origin)])
        digest = hashlib.sha256(text.encode()).hexdigest()[:24]
        cache = PackedCache(directory / f"{model}-{digest}{SUFFIX}", packer, is_named)
        cache._read()
        return cache

    def find(self, name: str) -> Linear | None:
        """The layer as an earlier start packed it; None where it must be packed."""
        if name not in self._stored_layers:
            return None
        try:
            form, tensor_names = self._stored_layers[name]
            tensors = {key: self._stored.get_tensor(f"{name}/{key}") for key in tensor_names}
            linear = self.packer.load_linear(form, tensors)
        except (SafetensorError, KernelError, KeyError, TypeError, ValueError) as error:
            self._warn_damaged(error)
            return None
        self._linears[name] = linear
        return linear

    def keep(self, name: str, linear: Linear) -> None:
        self._linears[name] = linear
        self._complete = False

    def save(self) -> None:
        """Write the file in a thread, unless all of it was found. Where that fails the model is served all the same."""
        if not self._complete:
            threading.Thread(target=self._save, args=self._contents(), name=WRITER, daemon=True).start()

    def _save(self, tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> None:
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            if self.is_named:
                _remove_abandoned(self.file.parent, _part_prefix(self.file))
                _write(self.file, tensors, metadata)
            else:
                self._save_where_room_is(tensors, metadata)
        except OSError as error:
            self._say(
                "packed weights could not be kept, the next start packs them again: set packed_cache to a directory "
                "that can be written, or to off",
                error,
            )

    def _save_where_room_is(self, tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> None:
        with only_writer(self.file.parent):
            if self.file.exists() and not self._was_there:
                return  # another engine of the model was faster
            _remove_abandoned(self.file.parent, ".")
            if make_room(self.file, sum(tensor.nbytes for tensor in tensors.values())):
                _write(self.file, tensors, metadata)
            else:
                _log.info("packed weights are not kept: the disk has no room", extra={"file": str(self.file)})

    def _read(self) -> None:
        try:
            self.file.open("rb").close()  # safetensors does not tell a file that is missing from one it may not read
            self._was_there = True
            self._stored = safe_open(self.file, framework="pt")
            self._stored_layers = json.loads(self._stored.metadata()["layers"])
        except (FileNotFoundError, NotADirectoryError):
            return
        except (SafetensorError, TypeError, KeyError, ValueError) as error:
            self._warn_damaged(error)
        except OSError as error:
            self._say("kept packed weights cannot be read: the weights are packed again", error)
        with contextlib.suppress(OSError):
            os.utime(self.file)

    def _warn_damaged(self, error: Exception) -> None:
        self._stored_layers = {}
        self._say("kept packed weights are damaged: the weights are packed again, and the file is replaced", error)

    def _say(self, message: str, error: Exception) -> None:
        level = logging.WARNING if self.is_named else logging.INFO
        _log.log(level, message, extra={"file": str(self.file), "error": str(error)})

    def _contents(self) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
        """Tensors in the order of the file (packed weights first: they are aligned), and its metadata."""
        blobs: dict[str, torch.Tensor] = {}
        others: dict[str, torch.Tensor] = {}
        layers: dict[str, Any] = {}
        for name, linear in self._linears.items():
            form, tensors = self.packer.save_linear(linear)
            layers[name] = [form, list(tensors)]
            for key, tensor in tensors.items():
                (blobs if key == "blob" else others)[f"{name}/{key}"] = tensor
        by_alignment = dict(sorted(others.items(), key=lambda item: -item[1].dtype.itemsize))
        return blobs | by_alignment, {"layers": json.dumps(layers)}


def code_digest() -> str:
    """Changes with the code: a reader that is corrected must not find what it read before."""
    digest = hashlib.sha256()
    for file in (file for folder in _CODE for file in sorted(folder.rglob("*.py"))):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def origin_of(files: Iterable[Path]) -> list[tuple[str, int, int]]:
    """Identify a state of a checkpoint's files: path, size and time of the last change of each."""
    stats = [(file.resolve(), file.stat()) for file in sorted(files)]
    return [(str(file), stat.st_size, stat.st_mtime_ns) for file, stat in stats]


def _remove_abandoned(directory: Path, prefix: str) -> None:
    """Remove parts of files that processes which were killed while they wrote have left: maybe gigabytes each."""
    for part in directory.iterdir():
        if part.name.startswith(prefix):
            with contextlib.suppress(FileNotFoundError):  # its writer has just finished, or another process was faster
                if SYSTEM_CLOCK.time() - part.stat().st_mtime > FRESH_S:
                    part.unlink()


def _part_prefix(file: Path) -> str:
    return f".{file.name}-"


def _write(file: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> None:
    """All or nothing: another process sees the whole file or none. Who may read it follows from the umask."""
    part = file.with_name(_part_prefix(file) + secrets.token_hex(8))
    try:
        with part.open("xb") as stream:
            _write_safetensors(stream, tensors, metadata)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(file)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _log.info("packed weights kept for the next start", extra={"file": str(file)})


def _write_safetensors(stream: IO[bytes], tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> None:
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": _TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    stream.write(len(text).to_bytes(8, "little") + text)
    for tensor in tensors.values():
        stream.write(tensor.contiguous().view(torch.uint8).numpy().data)
