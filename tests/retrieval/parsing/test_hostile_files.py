"""Files made to crash, stop or fill whoever reads them: each gives a typed error, none more than its limits."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from document_files import CONTENT_TYPES, archive, docx, paragraph, pdf
from kvarn.retrieval.parsing.child import read_file
from kvarn.retrieval.parsing.outcome import RefusedError
from kvarn.retrieval.parsing.parse import ParseLimits, UnreadableFileError, parse
from kvarn.retrieval.types import Document
from kvarn.sandbox.bubblewrap import find_bubblewrap
from kvarn.sandbox.errors import NoSandboxError
from profiles import examples

DOCTYPE_BOMB = (
    '<!DOCTYPE x [<!ENTITY a "ha">'
    + "".join(f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in zip("abcdefghi", "bcdefghij", strict=True))
    + "]>"
)
EXTERNAL = '<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]>'


def many_parts() -> bytes:
    return archive({"[Content_Types].xml": CONTENT_TYPES} | {f"word/{number}": "" for number in range(2001)})


def encrypted(data: bytes) -> bytes:
    """The same archive, with the mark of encryption on each entry, in both places where it stands."""
    made = bytearray(data)
    for signature, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        place = -1
        while (place := made.find(signature, place + 1)) >= 0:
            made[place + at] |= 1
    return bytes(made)


def lying(data: bytes) -> bytes:
    """The same archive, whose directory says that parts unpack to 10 bytes."""
    made, place = bytearray(data), -1
    while (place := made.find(b"PK\x01\x02", place + 1)) >= 0:
        made[place + 24 : place + 28] = (10).to_bytes(4, "little")
    return bytes(made)


REFUSED = {
    "zip bomb": (docx(paragraph("x" * 30_000_000)), "100 times its size"),
    "zip bomb that lies": (lying(docx(paragraph("x" * 30_000_000))), "damaged|well formed"),
    "huge archive": (
        archive({"[Content_Types].xml": "", "word/document.xml": os.urandom(64) * 2**22}),
        "200 MiB|100 times",
    ),
    "many parts": (many_parts(), "2,003|2,001|2,002"),
    "archive in an archive": (archive({"inner.zip": archive({"a": "b"})}), "Archives are not read"),
    "only an inner document": (archive({"[Content_Types].xml": "", "word/a.docx": docx("")}), "no document"),
    "entities": (docx(paragraph("&j;"), head=DOCTYPE_BOMB), "document type"),
    "external entity": (docx(paragraph("&a;"), head=EXTERNAL), "document type"),
    "deep xml": (docx("<w:p>" * 300), "200 elements deep"),
    "names that climb": (archive({"[Content_Types].xml": "", "word/../../../etc/passwd": "x"}), "no document"),
    "target that climbs": (
        docx("", {"_rels/.rels": '<r><Relationship Type="/officeDocument" Target="../../etc/passwd"/></r>'}),
        "no document",
    ),
    "truncated archive": (docx(paragraph("text"))[:-40], "damaged or truncated"),
    "encrypted archive": (encrypted(docx(paragraph("text"))), "encrypted"),
    "encrypted office file": (
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(512) + "EncryptedPackage".encode("utf-16-le"),
        "encrypted",
    ),
    "old office file": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(512), "old format"),
    "truncated pdf": (pdf([[(11, "text")]])[:120], "damaged or truncated"),
    "pdf without pages": (b"%PDF-1.7\n", "damaged or truncated"),
    "scanned pdf": (pdf([[]]), "no text. Its pages are pictures"),
    "nothing": (b"", "no text"),
    "zeros": (bytes(10_000), "binary"),
    "picture": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "binary"),
    "wrong mark": (b"\xff\xfe\x00\xd8\x00\xd8", "not in it"),
    "quoted without end": (b'a,b\n"' + b"x" * 2_000_000, "field larger"),
}


@pytest.mark.parametrize(("data", "reason"), REFUSED.values(), ids=REFUSED)
def test_file_is_refused_with_a_reason(tmp_path: Path, data: bytes, reason: str) -> None:
    suffix = "csv" if data.startswith(b"a,b") else "docx"
    (tmp_path / "file").write_bytes(data)
    with (tmp_path / "file").open("rb") as opened, pytest.raises(RefusedError, match=reason):
        read_file(opened, suffix, "", 5_000_000, libraries=True)


def test_comments_that_could_be_read_in_many_ways_take_no_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"<!---->" * 8000 + b"text")
    with (tmp_path / "file").open("rb") as opened:
        assert read_file(opened, "", "", 100_000, libraries=True).parser == "text-1"


def test_encrypted_pdf_is_refused(tmp_path: Path) -> None:
    guard = "<< /Filter /Standard /V 1 /R 2 /O <" + "00" * 32 + "> /U <" + "00" * 32 + "> /P -4 >>"
    data = pdf([[(11, "text")]], {6: guard}, trailer=f"/Encrypt 6 0 R /ID [<{'00' * 16}> <{'00' * 16}>]")
    (tmp_path / "file").write_bytes(data)
    with (tmp_path / "file").open("rb") as opened, pytest.raises(RefusedError, match="encrypted"):
        read_file(opened, "pdf", "", 1000, libraries=True)


def test_documents_with_strange_parts_are_read(tmp_path: Path) -> None:
    picture = (
        "<< /Type /XObject /Subtype /Image /Width 100000 /Height 100000 /ColorSpace /DeviceRGB /BitsPerComponent 8 >>"
    )
    endless = "<< /Type /Pages /Kids [4 0 R 2 0 R] /Count 3 >>"
    for data in (
        pdf([[(11, "text")]], {6: f"{picture}\nstream\n\nendstream"}),
        pdf([[(11, "text")]], {2: endless}),
        docx(
            paragraph("te\ud800xt".encode(errors="replace").decode().replace("?", "")), {"a/b.zip": archive({"a": "b"})}
        ),
        b"te\0xt".replace(b"\0", b""),
    ):
        (tmp_path / "file").write_bytes(data)
        with (tmp_path / "file").open("rb") as opened:
            assert read_file(opened, "txt", "", 1000, libraries=True).text.strip() == "text"


def _sandbox() -> None:
    try:
        find_bubblewrap()
    except NoSandboxError as error:
        pytest.skip(str(error))


async def parse_path(path: Path, media_type: str = "", limits: ParseLimits | None = None) -> Document:
    with path.open("rb") as file:
        return await parse(file, path.name, media_type, limits or ParseLimits())


async def test_what_takes_too_much_is_ended_from_outside(tmp_path: Path) -> None:
    _sandbox()
    deep, line = tmp_path / "deep.html", tmp_path / "line.csv"
    await asyncio.to_thread(deep.write_text, "<html>" + "<div>" * 1_000_000 + "text")

    def write_line() -> None:
        with line.open("wb") as file:
            file.write(b"0," * 2**16)
            file.truncate(2**30)

    await asyncio.to_thread(write_line)
    with pytest.raises(UnreadableFileError, match="1 s of a processor"):
        await parse_path(deep, "text/html", ParseLimits(processor_s=1))
    with pytest.raises(UnreadableFileError, match="characters of text") as caught:
        await parse_path(line, "text/csv")
    assert caught.value.code == "invalid_file"
    with pytest.raises(UnreadableFileError, match="MiB of memory"):
        await parse_path(line, "text/csv", ParseLimits(max_characters=2**30, memory_bytes=256 * 2**20))


async def test_without_a_sandbox_only_text_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise NoSandboxError("not here")

    monkeypatch.setattr("kvarn.retrieval.parsing.parse.find_bubblewrap", none)
    page, note = tmp_path / "a.html", tmp_path / "a.md"
    await asyncio.to_thread(page.write_text, "<p>text")
    await asyncio.to_thread(note.write_text, "# text")
    assert (await parse_path(note)).text == "# text"
    with pytest.raises(UnreadableFileError, match=r"needs a sandbox.*sandbox\.parse_without") as caught:
        await parse_path(page)
    assert caught.value.code == "server_error"
    assert (await parse_path(page, limits=ParseLimits(without_sandbox=True))).text == "text"


GOOD = [
    docx(paragraph("text") * 3),
    pdf([[(20, "Heading"), (11, "text")]]),
    b"<html><table><tr><td>x<ul><li>y</table>",
    b"a,b\n1,2\n",
    b"# a\n- b\n```\nc",
]


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.one_of(
        st.binary(max_size=300),
        st.tuples(
            st.sampled_from(GOOD), st.lists(st.tuples(st.integers(0, 2000), st.binary(max_size=4)), max_size=5)
        ).map(lambda drawn: _changed(*drawn)),
    ),
    suffix=st.sampled_from(["txt", "md", "html", "csv", "py", "pdf", "docx", "xlsx", ""]),
)
def test_whatever_the_bytes_there_is_text_or_a_reason(tmp_path: Path, data: bytes, suffix: str) -> None:
    (tmp_path / "file").write_bytes(data)
    with (tmp_path / "file").open("rb") as opened:
        try:
            parsed = read_file(opened, suffix, "", 10_000, libraries=True)
        except RefusedError as error:
            assert str(error).endswith(".")
            return
    end = 0
    for block in parsed.blocks:
        assert end <= block.start < block.end <= len(parsed.text)
        end = block.end
    parsed.text.encode()
    assert "\0" not in parsed.text


def _changed(data: bytes, changes: list[tuple[int, bytes]]) -> bytes:
    made = bytearray(data)
    for at, piece in changes:
        made[at % len(made) : at % len(made) + len(piece)] = piece
    return bytes(made)
