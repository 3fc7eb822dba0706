"""Split text into words with their places, also in scripts that are written without spaces.

Chinese, Japanese and Thai are segmented by BudouX; other scripts without spaces stay in one piece.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING

from recovery.unspaced_scripts import UNSPACED

if TYPE_CHECKING:
    from budoux.parser import Parser

_BETWEEN = r'\s,;:()"“”„‚«»‹›¿¡،؛؟、。，；：！？（）「」『』《》【】・…'
_PLAIN = rf"[^{_BETWEEN}{UNSPACED}]+"
_RUN = re.compile(rf"[{UNSPACED}]+|{_PLAIN}(?:(?<=\d)[,:](?=\d){_PLAIN})*")  # 1,500 and 9:30 are one
IS_UNSPACED = re.compile(rf"[{UNSPACED}]")
ENDING = re.compile(r"[\u3040-\u309f]")  # Hiragana: with one begins an ending or a particle of Japanese
_KANA = re.compile(r"[\u3040-\u30ff]")
_THAI = re.compile(r"[\u0e00-\u0e7f]")
_HAN = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]")


def segments(text: str) -> Iterator[tuple[int, str]]:
    """Yield each word with its place; punctuation inside and around words stays with them."""
    japanese = _KANA.search(text) is not None
    for match in _RUN.finditer(text):
        run, at = match.group(), match.start()
        model = _model(run, japanese=japanese) if IS_UNSPACED.match(run) else None
        if model is None:
            yield at, run
            continue
        for word in _parser(model).parse(run):
            yield at, word
            at += len(word)


def unspaced_words(text: str) -> list[tuple[int, str]]:
    """Return the words of a text's parts that are written without spaces."""
    if not IS_UNSPACED.search(text):
        return []
    return [(at, word) for at, word in segments(text) if IS_UNSPACED.match(word)]


def space_behind(text: str) -> str:
    """Return what divides a text from a word that goes on with it: a space, where its script has one."""
    return "" if IS_UNSPACED.search(text.rstrip()[-2:]) else " "  # behind 是 or 是：


def compared_words(text: str, normalise: Callable[[str], str]) -> list[str]:
    """Return the words by which a text is compared with another, each in its normal form."""
    if not IS_UNSPACED.search(text):
        return normalise(text).split()
    found = (normalise(word).replace(" ", "") for _, word in segments(text))
    return [word for word in found if word]


def _model(run: str, *, japanese: bool) -> str | None:
    """Return the segmentation model of a run: Han is Japanese where the text has kana."""
    if _THAI.search(run):
        return "th"
    if japanese:
        return "ja_word"
    return "zh-hans" if _HAN.search(run) else None


@lru_cache
def _parser(model: str) -> Parser:
    from budoux.parser import Parser

    text = files("budoux").joinpath("models", f"{model}.json").read_text(encoding="utf-8")
    return Parser(json.loads(text))
