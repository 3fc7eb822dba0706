"""Find a file's encoding: by its mark, as UTF-8, as UTF-16 without a mark, else by charset-normalizer."""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from io import IncrementalNewlineDecoder

from pipelines.corpus.reading import latin_pages
from pipelines.corpus.reading.formats import Unreadable
from recovery.counted import counted

MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
MAGIC = {
    b"%PDF-": "a PDF",
    b"PK\x03\x04": "a zip archive",
    b"\x1f\x8b": "a gzip archive",
    b"\x7fELF": "a program",
    b"\x89PNG": "a picture",
    b"\xff\xd8\xff": "a picture",
    b"\xd0\xcf\x11\xe0": "an old Office document",
}
OPENINGS = (*(mark for mark, _ in MARKS), *MAGIC)
SAMPLE = 2**16  # bytes from which an encoding is detected
DENSE = 2**12  # bytes: a longer sample is reduced to so much of the words that tell encodings apart
LONGEST_CHARACTER = 4  # bytes
WIDE = ["utf_16", "utf_16_le", "utf_16_be", "utf_32", "utf_32_le", "utf_32_be"]  # no legacy encodings
ISO_2022 = b"\x1b$"  # switches to two-byte characters, in seven bits
# Commonest characters, and none whose bytes are a common one in the other language too, as those of 、 and 。
_JAPANESE = {chr(code) for code in range(0x3041, 0x3094)} | set("一大人年日中本出国会上者的方時行")
_CHINESE = set(
    "的一是不了在人有和我为以要中上大年时月日第这们到地出说会可你生能而子那得于自之后作里用行所家方成多法"
    "对下过国来发学经与工公其应本按各及或等由将并同部业定员进事合动面如因现前新个他也就都分全高"
    "這們對說會過國來發學經與於後時為個其應將並業員進動現，："
)
# Charset-normalizer knows none of their texts with ①, ㈱ or half-width kana.
EAST_ASIAN = {
    "cp932": _JAPANESE,
    "euc_jis_2004": _JAPANESE,
    "gb18030": _CHINESE,
    "big5hkscs": _CHINESE,
}
SHARE = 0.12  # of the characters beyond ASCII, that the commonest ones of a language have at least
DIFFERENT = 4  # of these at least: two bytes of Thai are one of them by chance
BINARY = "binary data, not text"
DECLARED = re.compile(rb"""<(?:meta|\?xml)[^>]{0,200}?(?:charset|encoding)\s*=\s*["']?\s*([\w.:-]+)""", re.I)
# What browsers read for a declared encoding: what pages hold that name it.
AS_BROWSERS = {
    "ascii": "cp1252",
    "iso8859-1": "cp1252",
    "iso8859-9": "cp1254",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "shift_jis": "cp932",
    "euc_jp": "euc_jis_2004",
    "euc_kr": "cp949",
    "big5": "big5hkscs",
    "tis-620": "cp874",
    "iso8859-11": "cp874",
}
# Labels of the web that Python lacks
_LABELS = {
    "iso8859_2": "iso88592",
    "iso8859_7": "sun_eu_greek",
    "iso8859_6": "iso-8859-6-e iso-8859-6-i csiso88596e csiso88596i",
    "iso8859_8": "iso-8859-8-e iso-8859-8-i csiso88598e csiso88598i logical visual",
    "koi8_r": "koi koi8",
    "koi8_u": "koi8-ru",
    "mac_roman": "mac x-mac-roman csmacintosh",
    "mac_cyrillic": "x-mac-cyrillic x-mac-ukrainian",
    "cp874": "windows-874 dos-874 iso885911",
    **{f"cp125{number}": f"x-cp125{number}" for number in range(9)},
    "gb2312": "gb_2312 gb_2312-80 csgb2312 x-gbk",
    "big5": "cn-big5 x-x-big5",
    "euc_jp": "x-euc-jp cseucpkdfmtjapanese",
    "shift_jis": "x-sjis windows-31j",
    "euc_kr": "cseuckr csksc56011987 ks_c_5601-1989 ksc_5601 iso-ir-149 windows-949",
}
LABELS = {label: codec for codec, labels in _LABELS.items() for label in labels.split()}


@dataclass(frozen=True)
class Encoding:
    codec: str
    errors: str = "strict"
    note: str | None = None

    @property
    def name(self) -> str:
        return self.codec.removesuffix("-sig")


def find(blocks: Iterable[bytes]) -> Encoding:
    """Return the encoding of all blocks, as a byte that is not UTF-8 may come late; refuse binary data."""
    stream = iter(blocks)
    first = next(stream, b"")
    if kind := next((kind for magic, kind in MAGIC.items() if first.startswith(magic)), None):
        raise Unreadable(f"{kind} by its content, not what its name says")
    codec = marked(first) or (_wide(first) if b"\0" in first else None)
    if codec and not codec.startswith("utf-8"):
        return Encoding(codec)
    switched = first.find(ISO_2022)
    if switched >= 0 and first.isascii():
        seven_bit = detected(_cut(first[switched:], DENSE))
        if seven_bit and seven_bit.startswith("iso2022"):
            return _legacy(seven_bit)
    return _narrow(first, stream)


def plain_utf8(data: bytes) -> str | None:
    """Return whole UTF-8 text without a mark, with line ends as \\n; None where it needs a closer look."""
    if b"\0" in data or ISO_2022 in data or data.startswith(OPENINGS):
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def marked(data: bytes) -> str | None:
    """Return the encoding that a byte order mark at the beginning names."""
    return next((codec for mark, codec in MARKS if data.startswith(mark)), None)


def _narrow(first: bytes, rest: Iterator[bytes]) -> Encoding:
    """Return UTF-8, or a legacy encoding without NUL bytes."""
    marked_utf8 = first.startswith(codecs.BOM_UTF8)
    tally = _Tally()
    decode = codecs.getincrementaldecoder("utf-8")("strict").decode
    block: bytes | None = first
    while block is not None:
        if b"\0" in block:
            raise Unreadable(BINARY)
        following = next(rest, None)
        if tally.sample:
            tally.count(block, following is None)
        else:
            try:
                tally.good += _beyond_ascii(decode(block, following is None), block)
            except UnicodeDecodeError as error:
                tally.start(error.object, error.start, following is None)
        block = following
    if not tally.sample:
        return Encoding("utf-8-sig" if marked_utf8 else "utf-8")
    return tally.verdict()


class _Tally:
    """Counts how much of a text is UTF-8, and keeps a sample of what is not."""

    def __init__(self) -> None:
        self.sample = b""
        self.good = self.bad = 0
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def start(self, block: bytes, at: int, last: bool) -> None:
        """Begin with a block that is no UTF-8, with what the one before held of its first character."""
        self.sample = _cut(block[max(0, at - SAMPLE // 2) :], SAMPLE)
        self.count(block, last)

    def count(self, block: bytes, last: bool) -> None:
        text = self._decode(block, last)
        bad = text.count("\ufffd") - block.count(b"\xef\xbf\xbd")
        self.bad += bad
        self.good += _beyond_ascii(text, block) - bad

    def verdict(self) -> Encoding:
        if self.good >= 10 * self.bad:
            remark = f"{counted(self.bad, 'place')} replaced where the text is not UTF-8"
            return Encoding("utf-8-sig", "replace", remark)
        codec = detected(self.sample)
        if codec is None:
            raise Unreadable("not text in an encoding that is known")
        return _legacy(codec)


def _beyond_ascii(text: str, block: bytes) -> int:
    """Return how many characters of a block's text have more than one byte."""
    return 0 if block.isascii() else len(text) - len(block.translate(None, bytes(range(128, 256))))


def _legacy(codec: str) -> Encoding:
    return Encoding(codec, "replace", f"not UTF-8: read as {codec}, which was detected")


def detected(sample: bytes) -> str | None:
    """Return a legacy encoding in which the sample reads as text, by charset-normalizer's statistics.

    Chinese and Japanese are known by their commonest characters, and Latin code pages are told apart by
    their letters, where those statistics fail or tie.
    """
    telling = sample if sample.isascii() or len(sample) < DENSE else _dense(sample)
    name = _east_asian(telling) or _by_statistics(telling) or "cp1252"
    if name in ("ascii", "utf_8"):
        name = "cp1252"
    name = latin_pages.likeliest(telling, name)
    text = sample.decode(name, "replace")
    return codecs.lookup(name).name if _looks_like_text(text) else None


def _dense(sample: bytes) -> bytes:
    """Return the different words of a sample that hold more than ASCII: only those tell encodings apart."""
    words = dict.fromkeys(word for word in sample.split() if not word.isascii())
    return _cut(b" ".join(words), DENSE)


def _cut(data: bytes, size: int) -> bytes:
    """Return how data begin, up to a space or a line end if one is near: they are part of no character."""
    if len(data) <= size:
        return data
    end = max(data.rfind(mark, size // 2, size) for mark in (b" ", b"\n"))
    return data[: size if end < 0 else end]


def _east_asian(telling: bytes) -> str | None:
    """Return the encoding in which a text has most common characters of Chinese or Japanese, if enough."""
    shares = {codec: _common_share(telling, codec) for codec in EAST_ASIAN}
    best = max(shares, key=shares.__getitem__)  # the first of equals
    return best if shares[best] >= SHARE else None


def _common_share(telling: bytes, codec: str) -> float:
    """Return the share of common characters; a text that was cut may end within a character."""
    try:
        text = codecs.getincrementaldecoder(codec)("strict").decode(telling)
    except UnicodeDecodeError:
        return 0.0
    beyond = [c for c in text if not c.isascii()]
    common = [c for c in beyond if c in EAST_ASIAN[codec]]
    return len(common) / len(beyond) if len(set(common)) >= DIFFERENT else 0.0


def _by_statistics(telling: bytes) -> str | None:
    """Return what charset-normalizer detects, which knows whole characters of several bytes only.

    A text that was cut within a word may end within a character: it is tried without its last bytes too.
    """
    import charset_normalizer

    ends = range(len(telling), len(telling) - (LONGEST_CHARACTER if len(telling) == DENSE else 1), -1)
    tried = (charset_normalizer.from_bytes(telling[:end], cp_exclusion=WIDE).best() for end in ends)
    found = [match for match in tried if match]
    best = min([match for match in found if match.multi_byte_usage] or found, default=None)
    return best.encoding if best else None


def _wide(first: bytes) -> str | None:
    """Return UTF-16 or UTF-32 without a mark, if the bytes read as text with spaces or line ends in it."""
    for codec, width in (("utf-32-le", 4), ("utf-32-be", 4), ("utf-16-le", 2), ("utf-16-be", 2)):
        sample = first[: min(len(first), SAMPLE) // width * width]
        if width == 2 and len(first) % 2 and len(first) < SAMPLE:
            continue
        decoder = codecs.getincrementaldecoder(codec)("strict")
        try:
            text = decoder.decode(sample)
        except UnicodeDecodeError:
            continue
        if _looks_like_text(text) and "\0" not in text and any(c in text for c in " \n\u3000"):
            return codec
    return None


def _looks_like_text(text: str) -> bool:
    """Return whether nearly no character is a control, an unassigned or a private one."""
    sample = text[:8192]
    odd = sum(count for c, count in Counter(sample).items() if _odd(c))
    return bool(sample) and odd <= len(sample) // 50


def _odd(c: str) -> bool:
    strange = unicodedata.category(c) in ("Cc", "Cn", "Co", "Cs") and c not in "\t\n\r\f\x1b"
    return strange or c == "\ufffd"


def decoded(blocks: Callable[[], Iterable[bytes]], encoding: Encoding) -> Iterator[str]:
    """Yield the text, block by block, with line ends as \\n."""
    codec = codecs.getincrementaldecoder(encoding.codec)(encoding.errors)
    newlines = IncrementalNewlineDecoder(codec, translate=True)
    try:
        for block in blocks():
            if text := newlines.decode(block):
                yield text
        if text := newlines.decode(b"", final=True):
            yield text
    except UnicodeError as error:  # a codec that needs a mark raises the base class, without a reason
        raise Unreadable(f"not whole {encoding.name}: {getattr(error, 'reason', error)}") from error


def declared(first: bytes) -> str | None:
    """Return the codec that a page's first bytes name; None for UTF and where there is none of that name."""
    found = DECLARED.search(first)
    if found is None:
        return None
    try:
        label = found[1].decode("ascii").lower()
        codec = codecs.lookup(LABELS.get(label, label)).name
        codec = AS_BROWSERS.get(codec, codec)
        "".encode(codec)
    except (LookupError, UnicodeError):
        return None
    return None if codec.startswith("utf") else codec
