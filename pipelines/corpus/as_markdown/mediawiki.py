"""Write a page of a MediaWiki as Markdown: headings, lists, tables, links and emphasis.

What stands alone for something of the wiki's (templates, files, categories, references) is left out; a
template within a sentence stands for a word and stays. Code stays as it stands, in tags that Markdown knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pipelines.corpus.as_markdown.parts import Held, without_marks
from pipelines.corpus.as_markdown.wiki_tables import WikiTable

_CODE = re.compile(r"<(pre|source|syntaxhighlight|nowiki|math|code|tt)\b[^<>]*(?<!/)>", re.I)
_AS_PRE = re.compile(r"(</?)(?:source|syntaxhighlight)\b[^<>]*>", re.I)
_NOWIKI = re.compile(r"</?nowiki\s*>", re.I)  # says only that what it holds is no markup
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.S)
_TEMPLATE = re.compile(r"^[ \t]*\{\{(?!\{)[^{}]*\}\}(?!\})[ \t]*(?:\n|\Z)", re.M)
_INNER = re.compile(r"(?<=(?<!\{)\{\{)([^{}]*)\{\{[^{}]*\}\}")  # a template within another one
_NESTED = 4  # templates around one another
_NAMESPACES = (  # of files and categories, as the larger wikis call them
    "file|image|media|category|datei|bild|kategorie|fichier|catégorie|archivo|imagen|categoría|immagine"
    "|categoria|ficheiro|arquivo|imagem|bestand|afbeelding|categorie|plik|grafika|kategoria|файл|изображение"
    "|категория|зображення|категорія|ملف|صورة|تصنيف|پرونده|تصویر|رده|קובץ|תמונה|קטגוריה|ファイル|画像|カテゴリ"
    "|文件|档案|檔案|图像|圖像|分类|分類|파일|그림|분류|dosya|resim|kategori|fil|soubor|tập[ _]tin|hình"
    "|thể[ _]loại|berkas|gambar"
)
_FILE_NAME = r"(?!//)[^\[\]|\n]{1,250}\.(?:jpe?g|png|svg|gif|webp|tiff?|pdf|djvu|og[agv]|web[mp]|mp[34])"
_LEFT_OUT = (
    re.compile(r"<ref\b[^<>]*/>|<references\b[^<>]*>|</references\s*>|<nowiki\s*/>", re.I),
    re.compile(r"<ref\b[^<>]*>(?:(?!<ref\b).){0,4000}?</ref\s*>", re.S | re.I),
    # Switches, and the way to another page
    re.compile(r"__[A-Z]{3,20}__|^#[A-Z]{3,20}[ \t]*:?[ \t]*\[\[.*$", re.M),
    re.compile(
        rf"\[\[[ \t]*(?:(?:{_NAMESPACES})[ \t]*:|[^\[\]|:\n]{{1,40}}:{_FILE_NAME}(?=[ \t]*[|\]]))"
        r"(?:[^\[\]]|\[\[[^\[\]]*\]\]|\[[^\[\]]*\])*\]\]",
        re.I,
    ),
)
_LINKS = (
    (re.compile(r"\[\[:?[^\[\]|\n]*\|([^\[\]\n]+)\]\]"), r"\1"),
    (re.compile(r"\[\[:?([^\[\]|\n]+)\|?\]\]"), r"\1"),
    (re.compile(r"\[(?:(?:https?:|ftp:)?//|mailto:)[^\s\[\]]+[ \t]+([^\[\]\n]+)\]"), r"\1"),
)
_EMPHASIS = (
    (re.compile(r"'''''(.+?)'''''"), r"***\1***"),
    (re.compile(r"'''(.+?)'''"), r"**\1**"),
    (re.compile(r"''(.+?)''"), r"*\1*"),
)
_ITEM = re.compile(r"([*#:;]+)[ \t]*(.*)$")


def as_markdown(text: str) -> str:
    """Return a page of a wiki in Markdown."""
    held = Held()
    text = _without_code(_COMMENT.sub("", without_marks(text)), held)
    for _ in range(_NESTED):
        text = _INNER.sub(r"\1", text)
    text = _TEMPLATE.sub("", text)
    for pattern in _LEFT_OUT:
        text = pattern.sub("", text)
    for pattern, instead in _LINKS:
        text = pattern.sub(instead, text)
    text = "\n".join(_lines(text.split("\n")))
    for pattern, instead in _EMPHASIS:
        text = pattern.sub(instead, text)
    return held.restored(text)


def _without_code(text: str, held: Held) -> str:
    """Put a mark in place of code, which is held."""
    kept, end = [], 0
    unclosed = set()
    for opening in _CODE.finditer(text):
        name = opening[1].lower()
        if opening.start() < end or name in unclosed:
            continue
        closing = re.compile(rf"</{name}\s*>", re.I).search(text, opening.end())
        if closing is None:
            unclosed.add(name)
            continue
        code = text[opening.start() : closing.end()]
        code = _AS_PRE.sub(r"\1pre>", code) if _AS_PRE.match(code) else _NOWIKI.sub("", code)
        kept += [text[end : opening.start()], held.hold(code)]
        end = closing.end()
    return "".join([*kept, text[end:]])


def _lines(lines: list[str]) -> Iterator[str]:
    table: WikiTable | None = None
    for line in lines:
        mark = line.lstrip(" \t:")
        if table is None and mark.startswith("{|"):
            table = WikiTable()
        elif table is None:
            yield _line(line)
        elif not table.takes(mark):
            yield from table.written()
            table = None
    yield from table.written() if table else ()


def _line(line: str) -> str:
    """Return a heading or an item of a list as Markdown writes it, any other line as it is."""
    depth = min(len(line) - len(line.lstrip("=")), 6)
    heading = line.rstrip()
    if depth and len(heading) > 2 * depth and heading.endswith("=" * depth):
        return f"{'#' * depth} {heading[depth:-depth].strip()}"
    item = _ITEM.match(line)
    if not item:
        return line
    marks, said = item.groups()
    indent = "  " * (len(marks) - 1)
    if marks[-1] == ";":
        term, _, meaning = said.partition(" : ")
        return f"{indent}**{term.strip()}**" + (f": {meaning}" if meaning else "")
    return indent + {"*": "- ", "#": "1. ", ":": ""}[marks[-1]] + said
