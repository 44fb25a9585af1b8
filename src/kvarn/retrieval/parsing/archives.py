"""Zip archives of Office's formats: their bounds, and their XML read with expat."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Mapping
from typing import BinaryIO
from xml.parsers import expat

from kvarn.retrieval.parsing.outcome import RefusedError

_MAX_ENTRIES = 2_000
_MAX_RATIO = 100
_RATIO_FROM_BYTES = 1024**2
"""Smaller entries may be of any ratio: a part of empty cells shrinks well."""
_MAX_TOTAL_BYTES = 200 * 1024**2
_MAX_DEPTH = 200
_PIECE_BYTES = 64 * 1024

_DAMAGED = "The file is damaged or truncated."
UNREADABLE = (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, NotImplementedError)
"""Errors of the library for archives that are damaged, or made in a way that it does not know."""


def check_archive(file: BinaryIO) -> None:
    """Check the bounds of an archive by what it says of itself. Raises RefusedError."""
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
    except UNREADABLE:
        raise RefusedError(_DAMAGED) from None
    finally:
        file.seek(0)
    if len(entries) > _MAX_ENTRIES:
        raise RefusedError(f"The archive has {len(entries):,} entries; at most {_MAX_ENTRIES:,} are read.")
    if sum(entry.file_size for entry in entries) > _MAX_TOTAL_BYTES:
        raise RefusedError(f"The archive unpacks to more than {_MAX_TOTAL_BYTES // 2**20} MiB.")
    for entry in entries:
        if entry.flag_bits & 1:
            raise RefusedError("The file is encrypted. Upload it without a password.")
        if entry.file_size > max(_RATIO_FROM_BYTES, _MAX_RATIO * entry.compress_size):
            raise RefusedError(f"A part of the archive unpacks to more than {_MAX_RATIO} times its size.")


class XmlReader:
    """Reads parts of an archive as XML, and counts what they really unpack to."""

    def __init__(self, file: BinaryIO) -> None:
        check_archive(file)
        self._archive = zipfile.ZipFile(file)
        self._left = _MAX_TOTAL_BYTES

    def read(
        self,
        name: str,
        start: Callable[[str, Mapping[str, str]], None],
        end: Callable[[str], None] = lambda _: None,
        characters: Callable[[str], None] = lambda _: None,
    ) -> bool:
        """Read a part, if there is one. Names of elements and attributes come without their namespaces. Raises
        RefusedError."""
        parser = expat.ParserCreate(namespace_separator=" ")
        depth = 0

        def started(element: str, attributes: dict[str, str]) -> None:
            nonlocal depth
            depth += 1
            if depth > _MAX_DEPTH:
                raise RefusedError(f"The file's XML is more than {_MAX_DEPTH} elements deep.")
            start(_local(element), {_local(key): value for key, value in attributes.items()})

        def ended(element: str) -> None:
            nonlocal depth
            depth -= 1
            end(_local(element))

        parser.buffer_text = True
        parser.StartElementHandler = started
        parser.EndElementHandler = ended
        parser.CharacterDataHandler = characters
        parser.StartDoctypeDeclHandler = _refuse_declarations
        try:
            with self._archive.open(name) as part:
                while piece := part.read(_PIECE_BYTES):
                    self._left -= len(piece)
                    if self._left < 0:
                        raise RefusedError(f"The archive unpacks to more than {_MAX_TOTAL_BYTES // 2**20} MiB.")
                    parser.Parse(piece)
            parser.Parse(b"", True)
        except KeyError:
            return False
        except expat.ExpatError as error:
            raise RefusedError(f"The file's XML is not well formed: {error}.") from None
        except UNREADABLE:
            raise RefusedError(_DAMAGED) from None
        return True


def _local(name: str) -> str:
    return name.rpartition(" ")[2]


def _refuse_declarations(*_: object) -> None:
    """Entities come with a declaration of a document type, and no file of Office has one."""
    raise RefusedError("The file's XML declares a document type, which is not read.")
