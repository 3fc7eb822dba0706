"""Files of every format, whole and hostile, made by hand: the tests need no program that writes them."""

from __future__ import annotations

import gzip
import io
import zipfile
from pathlib import Path
from urllib.parse import unquote

WORD = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
DRAW = 'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"'
SLIDE = 'xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main"'
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
RELATIONS = 'xmlns="http://schemas.openxmlformats.org/package/2006/relationships"'


def pdf_objects(objects: list[bytes]) -> bytes:
    """Numbered objects, the first being the catalogue, as a file with its table."""
    out = io.BytesIO(b"%PDF-1.7\n")
    out.seek(0, io.SEEK_END)
    places = []
    for number, body in enumerate(objects, 1):
        places.append(out.tell())
        out.write(b"%d 0 obj\n%s\nendobj\n" % (number, body))
    table = out.tell()
    out.write(b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1))
    out.writelines(b"%010d 00000 n \n" % place for place in places)
    out.write(b"trailer\n<< /Root 1 0 R /Size %d >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, table))
    return out.getvalue()


def stream(data: bytes, head: bytes = b"") -> bytes:
    return b"<< %s /Length %d >>\nstream\n%s\nendstream" % (head, len(data), data)


def pdf(*pages: str) -> bytes:
    """A page a text, a line a line."""
    font = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
    kids = b" ".join(b"%d 0 R" % (4 + 2 * i) for i in range(len(pages)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [%s] /Count %d >>" % (kids, len(pages)),
        font,
    ]
    for i, text in enumerate(pages):
        lines = b" ".join(b"(%s) Tj 0 -14 Td" % line.encode("latin-1") for line in text.split("\n"))
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents %d 0 R "
            b"/Resources << /Font << /F1 3 0 R >> >> >>" % (5 + 2 * i)
        )
        objects.append(stream(b"BT /F1 12 Tf 72 720 Td %s ET" % lines))
    return pdf_objects(objects)


def looping_pdf() -> bytes:
    """Its page tree is its own child, and its trailer points back to itself."""
    whole = pdf_objects([b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Kids [2 0 R] /Count 9 >>"])
    table = int(whole.rpartition(b"startxref\n")[2].split(b"\n")[0])
    return whole.replace(b"/Size 3", b"/Size 3 /Prev %d" % table)


def endless_pdf(levels: int = 12, each: int = 12) -> bytes:
    """Forms that draw forms that draw forms: 12 to the 12th letters out of a few hundred bytes."""
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [4 0 R] /Count 1 >>",
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 5 0 R "
        b"/Resources << /XObject << /X 6 0 R >> >> >>",
        stream(b"/X Do " * each),
    ]
    head = b"/Type /XObject /Subtype /Form /BBox [0 0 612 792] /Resources << /Font << /F1 3 0 R >> %s >>"
    for level in range(levels):
        inner = b"/XObject << /X %d 0 R >>" % (7 + level)
        objects.append(stream(b"/X Do " * each, head % inner))
    objects.append(stream(b"BT /F1 9 Tf 9 9 Td (a) Tj ET", head % b""))
    return pdf_objects(objects)


def archive(parts: dict[str, str | bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
        for name, data in parts.items():
            made.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)  # of no date: always the same
    return out.getvalue()


def docx(body: str, footnotes: str | None = None) -> bytes:
    """A Word file with this XML as its body."""
    parts: dict[str, str | bytes] = {
        "[Content_Types].xml": "<Types/>",
        "word/document.xml": f"<w:document {WORD}><w:body>{body}</w:body></w:document>",
    }
    if footnotes:
        parts["word/footnotes.xml"] = f"<w:footnotes {WORD}>{footnotes}</w:footnotes>"
    return archive(parts)


def paragraph(text: str, properties: str = "") -> str:
    return f"<w:p>{properties}<w:r><w:t>{text}</w:t></w:r></w:p>"


def pptx(slides: dict[int, str], order: list[int], notes: dict[int, str] | None = None) -> bytes:
    """Slides by the number in their file's name; `order` is how the presentation shows them."""
    ids = "".join(f'<p:sldId id="{256 + n}" r:id="rId{n}"/>' for n in order)
    shown = f'<p:presentation {SLIDE} xmlns:r="{OFFICE}"><p:sldIdLst>{ids}</p:sldIdLst></p:presentation>'
    rows = "".join(f'<Relationship Id="rId{n}" Target="slides/slide{n}.xml"/>' for n in slides)
    parts: dict[str, str | bytes] = {
        "ppt/presentation.xml": shown,
        "ppt/_rels/presentation.xml.rels": f"<Relationships {RELATIONS}>{rows}</Relationships>",
    }
    for number, text in slides.items():
        parts[f"ppt/slides/slide{number}.xml"] = _drawn(text)
    for number, text in (notes or {}).items():
        target = f'<Relationship Id="rId1" Target="../notesSlides/notesSlide{number}.xml"/>'
        related = f"<Relationships {RELATIONS}>{target}</Relationships>"
        parts[f"ppt/slides/_rels/slide{number}.xml.rels"] = related
        parts[f"ppt/notesSlides/notesSlide{number}.xml"] = _drawn(text)
    return archive(parts)


def _drawn(text: str) -> str:
    lines = "".join(f"<a:p><a:r><a:t>{line}</a:t></a:r></a:p>" for line in text.split("\n"))
    return f"<p:sld {SLIDE} {DRAW}>{lines}</p:sld>"


ODF = "urn:oasis:names:tc:opendocument:xmlns"
SPACES_OF_ODF = {name: name for name in ("office", "text", "table", "style", "presentation")}
SPACES_OF_ODF |= {"draw": "drawing", "svg": "svg-compatible"}
OPENDOCUMENT = " ".join(f'xmlns:{prefix}="{ODF}:{name}:1.0"' for prefix, name in SPACES_OF_ODF.items())


def opendocument(body: str, styles: str = "", kind: str = "text", named: str = "") -> bytes:
    """An OpenDocument file with this XML as its body, these automatic styles, and named ones."""
    automatic = f"<office:automatic-styles>{styles}</office:automatic-styles>"
    inside = f"<office:body><office:{kind}>{body}</office:{kind}></office:body>"
    content = f"<office:document-content {OPENDOCUMENT}>{automatic}{inside}</office:document-content>"
    parts: dict[str, str | bytes] = {"mimetype": f"application/vnd.oasis.opendocument.{kind}"}
    if named:
        said = f"<office:styles>{named}</office:styles>"
        parts["styles.xml"] = f"<office:document-styles {OPENDOCUMENT}>{said}</office:document-styles>"
    return archive({**parts, "content.xml": content})


def odf_text(text: str) -> str:
    return f"<text:p>{text}</text:p>"


def odf_table(*rows: list[str], titles: int = 1) -> str:
    """A table of texts, the first rows of which are titles."""
    drawn = [
        "<table:table-row>"
        + "".join(f"<table:table-cell>{odf_text(cell)}</table:table-cell>" for cell in row)
        + "</table:table-row>"
        for row in rows
    ]
    head = f"<table:table-header-rows>{''.join(drawn[:titles])}</table:table-header-rows>" if titles else ""
    return f"<table:table>{head}{''.join(drawn[titles:])}</table:table>"


def epub(
    pages: dict[str, str], title: str = "", parts: dict[str, str | bytes] | None = None, guide: str = ""
) -> bytes:
    """A book whose spine is these pages, by their addresses; one behind a + is the page of contents."""
    items, spine, files = "", "", {}
    for number, (name, page) in enumerate(pages.items()):
        address, shown = name.lstrip("+"), ' properties="nav"' if name.startswith("+") else ""
        items += f'<item id="p{number}" href="{address}" media-type="application/xhtml+xml"{shown}/>'
        spine += f'<itemref idref="p{number}"/>'
        files[f"OPS/{unquote(address)}"] = page
    package = (
        '<package xmlns="http://www.idpf.org/2007/opf" xmlns:dc="http://purl.org/dc/elements/1.1/">'
        f"<metadata><dc:title>{title}</dc:title></metadata><manifest>{items}</manifest>"
        f"<spine>{spine}</spine><guide>{guide}</guide></package>"
    )
    container = '<container><rootfiles><rootfile full-path="OPS/book.opf"/></rootfiles></container>'
    return archive({"META-INF/container.xml": container, "OPS/book.opf": package, **files, **(parts or {})})


def book_page(body: str, title: str = "") -> str:
    """A page of a book, as XHTML."""
    spaces = 'xmlns="http://www.w3.org/1999/xhtml" xmlns:epub="http://www.idpf.org/2007/ops"'
    head = f'<?xml version="1.0" encoding="utf-8"?>\n<!DOCTYPE html>\n<html {spaces}>'
    return f"{head}<head><title>{title}</title></head><body>{body}</body></html>"


def zip_bomb(megabytes: int = 48) -> bytes:
    return docx(paragraph("a" * megabytes * 2**20))


def entity_bomb() -> bytes:
    """A billion laughs, and a look into another file."""
    laughs = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
    declared = f'<!DOCTYPE w [<!ENTITY l0 "ha"><!ENTITY x SYSTEM "file:///etc/passwd">{laughs}]>'
    body = f"{declared}<w:document {WORD}>{paragraph('&l9;&x;')}</w:document>"
    return archive({"word/document.xml": body})


def gzip_bomb(megabytes: int = 80) -> bytes:
    return gzip.compress(b"a" * megabytes * 2**20, 9)


def write(root: Path, files: dict[str, bytes | str]) -> Path:
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
    return root
