"""The archive of a backup: a tar file whose last entry says what must be in it.

    database.sqlite or database.pgdump    the database
    blobs/ID                              contents of files
    keys/prompts.key                      only where that was asked for
    manifest.json                         versions, and the size and SHA-256 of each entry above

An archive that was cut short has no manifest, and is refused.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import tarfile
import tempfile
import zlib
from pathlib import Path
from typing import IO, BinaryIO, Self

import msgspec

from kvarn.store.directories import sync_directory
from kvarn.store.errors import StoreError

FORMAT = 1
MANIFEST = "manifest.json"
BLOBS = "blobs/"
PROMPT_KEYS = "keys/prompts.key"
DATABASES = {"sqlite": "database.sqlite", "postgresql": "database.pgdump"}
"""Name of the entry with the database, by its kind."""

_NAMES = re.compile(rf"{MANIFEST}|{PROMPT_KEYS}|{'|'.join(DATABASES.values())}|{BLOBS}[\w-]{{1,100}}", re.ASCII)
_MAX_MANIFEST_BYTES = 1 << 30
_PIECE_BYTES = 1 << 20


class Entry(msgspec.Struct, frozen=True):
    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    kvarn: str
    """Version of Kvarn that made it."""
    schema: str
    """Revision of the database's schema."""
    compatible_since: str | None = None
    """Oldest revision whose Kvarn serves on that schema."""
    database: str
    """`sqlite` or `postgresql`."""
    made_at: int
    """Seconds since 1970."""
    blobs_at: str | None = None
    """Place of file contents that are not in the archive; None: there are none."""
    lost_files: tuple[str, ...] = ()
    """Files that the database has and whose contents could not be read: most often deleted meanwhile."""
    prompt_keys: tuple[str, ...] = ()
    """Fingerprints of the keys that seal kept prompts."""
    entries: dict[str, Entry]


class _Format(msgspec.Struct):
    format: int


class ArchiveWriter:
    """Writes an archive under another name, which it gets once it is whole. Raises `StoreError` where there is a file
    already."""

    def __init__(self, path: Path) -> None:
        self.entries: dict[str, Entry] = {}
        self._path = path
        if path.exists():
            raise StoreError(f"{path} is there already: name another file")
        descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # its owner alone may read it
        self._draft, self._file = Path(draft), os.fdopen(descriptor, "wb")
        compressed = path.suffix in (".gz", ".tgz")
        self._tar = tarfile.open(fileobj=self._file, mode="w:gz" if compressed else "w")  # noqa: SIM115  see __exit__

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._draft.unlink(missing_ok=True)

    def add(self, name: str, content: BinaryIO, size: int) -> None:
        """Add an entry. Raises OSError where the content is shorter than `size`."""
        reading = _Hashing(content)
        self._tar.addfile(_header(name, size), reading)
        self._tar.members = []  # type: ignore[attr-defined]  # it would keep them all
        self.entries[name] = Entry(size, reading.digest.hexdigest())

    def finish(self, manifest: Manifest) -> None:
        """End the archive; it outlives a power failure then."""
        text = msgspec.json.encode(manifest)
        self._tar.addfile(_header(MANIFEST, len(text)), io.BytesIO(text))
        self._tar.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._draft.rename(self._path)
        sync_directory(self._path.absolute().parent)


class _Hashing(io.RawIOBase):
    """A content that is read, and its digest."""

    def __init__(self, content: BinaryIO) -> None:
        self.digest = hashlib.sha256()
        self._content = content

    def read(self, size: int = -1) -> bytes:
        data = self._content.read(size)
        self.digest.update(data)
        return data


def _header(name: str, size: int) -> tarfile.TarInfo:
    header = tarfile.TarInfo(name)
    header.size, header.mode = size, 0o600
    return header


def unpack(path: Path, into: Path | None) -> Manifest:
    """Read an archive to its end and compare all of it with its manifest.

    Args:
        path: The archive.
        into: An empty folder for its entries; None: they are only compared.

    Raises:
        StoreError: It is no archive of this format, or is not whole.
    """
    try:
        with tarfile.open(path, "r|*") as tar:
            return _unpack(tar, path, into)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise StoreError(f"{path} is no backup, or was cut short: {error}") from None


def _unpack(tar: tarfile.TarFile, path: Path, into: Path | None) -> Manifest:
    found: dict[str, Entry] = {}
    manifest: Manifest | None = None
    for member in tar:
        tar.members = []  # type: ignore[attr-defined]  # it would keep them all
        is_ours = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and _NAMES.fullmatch(member.name)
        content = tar.extractfile(member) if is_ours else None  # a sparse file's size says nothing: it is none of ours
        if content is None or manifest is not None or member.name in found:
            raise StoreError(f"{path} is no backup of Kvarn's: it has the entry {member.name[:100]!r}")
        if member.name == MANIFEST:
            manifest = _read_manifest(path, content.read(_MAX_MANIFEST_BYTES))
        else:
            found[member.name] = _take(content, None if into is None else into / member.name)
    if manifest is None:
        raise StoreError(f"{path} was cut short: its manifest is missing")
    for name in manifest.entries.keys() | found.keys():
        if found.get(name) != manifest.entries.get(name):
            raise StoreError(f"{path} was damaged: {name} is not as the manifest has it")
    return manifest


def _read_manifest(path: Path, text: bytes) -> Manifest:
    try:
        if msgspec.json.decode(text, type=_Format).format > FORMAT:
            raise StoreError(f"{path} was made by a newer Kvarn, in a format that this one does not know")
        return msgspec.json.decode(text, type=Manifest)
    except msgspec.MsgspecError as error:
        raise StoreError(f"the manifest of {path} cannot be read: {error}") from None


def _take(content: IO[bytes], target: Path | None) -> Entry:
    digest, size = hashlib.sha256(), 0
    if target is not None:
        target.parent.mkdir(mode=0o700, exist_ok=True)
    with Path(os.devnull if target is None else target).open("wb") as file:
        while piece := content.read(_PIECE_BYTES):
            digest.update(piece)
            file.write(piece)
            size += len(piece)
    return Entry(size, digest.hexdigest())
