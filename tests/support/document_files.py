"""Documents made by hand: PDF, DOCX and archives, good ones and bad ones."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence

W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
CONTENT_TYPES = '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"/>'
STYLES = f'''<w:styles xmlns:w="{W}"><w:style w:styleId="H1"><w:name w:val="heading 1"/></w:style>
<w:style w:styleId="H2"><w:name w:val="Heading 2"/></w:style></w:styles>'''


def pdf(pages: Sequence[Sequence[tuple[int, str]]], extra: Mapping[int, str] | None = None, trailer: str = "") -> bytes:
    """A PDF of pages of lines, each with the size of its font. `extra` replaces objects by number: 1 is the catalog,
    2 the tree of pages, 3 the font, then a page and its content for each page."""
    objects = ["<< /Type /Catalog /Pages 2 0 R >>", "", "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"]
    kids = []
    for lines in pages:
        content, height = "BT ", 0
        for size, text in lines:
            content += f"/F1 {size} Tf 1 0 0 1 72 {720 - height} Tm ({text}) Tj "
            height += size + 6
        content += "ET"
        kids.append(f"{len(objects) + 1} 0 R")
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {len(objects) + 2} 0 R "
            "/Resources << /Font << /F1 3 0 R >> >> >>"
        )
        objects.append(f"<< /Length {len(content)} >>\nstream\n{content}\nendstream")
    objects[1] = f"<< /Type /Pages /Kids [{' '.join(kids)}] /Count {len(kids)} >>"
    for number, text in (extra or {}).items():
        objects += [""] * (number - len(objects))
        objects[number - 1] = text
    out = io.BytesIO(b"")
    out.write(b"%PDF-1.7\n")
    places = []
    for number, text in enumerate(objects, start=1):
        places.append(out.tell())
        out.write(f"{number} 0 obj\n{text}\nendobj\n".encode("latin-1"))
    xref = out.tell()
    out.write(f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n".encode())
    out.writelines(f"{place:010} 00000 n \n".encode() for place in places)
    out.write(f"trailer << /Size {len(objects) + 1} /Root 1 0 R {trailer} >>\nstartxref\n{xref}\n%%EOF".encode())
    return out.getvalue()


def archive(parts: Mapping[str, str | bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
        for name, data in parts.items():
            made.writestr(name, data)
    return out.getvalue()


def docx(body: str, parts: Mapping[str, str | bytes] | None = None, head: str = "") -> bytes:
    """A DOCX of the elements of its body, whose namespace has the prefix `w`."""
    document = f'{head}<w:document xmlns:w="{W}"><w:body>{body}</w:body></w:document>'
    return archive(
        {"[Content_Types].xml": CONTENT_TYPES, "word/styles.xml": STYLES, "word/document.xml": document}
        | dict(parts or {})
    )


def paragraph(text: str, properties: str = "") -> str:
    return f"<w:p><w:pPr>{properties}</w:pPr><w:r><w:t>{text}</w:t></w:r></w:p>"
