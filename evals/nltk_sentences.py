"""Choose NLTK's sentence model before anything is generated.

IFEval's checkers split sentences with NLTK's Punkt, whose English model is a separate download; without it
lm-eval tries to download it at import and fails at scoring. Nothing is downloaded here: where the model is
absent, a small one in the same format (see sentence_model/README.md) is put on NLTK's search path, so that
the same code runs offline; the result names the model.

NLTK refuses files that another account owns or may write, as in a clone made under umask 002 or mounted into
a container: it gets a private copy.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache, lru_cache
from pathlib import Path

SHIPPED = Path(__file__).parent / "sentence_model"
FALLBACK_NOTE = (
    "sentences were split with the built-in fallback model, as NLTK's punkt_tab is not installed "
    "(counts agree on 99 % of answers): python -m nltk.downloader punkt_tab"
)


def settle() -> str:
    """Make a sentence model available; return its name: "punkt_tab" or "fallback"."""
    import nltk

    if not _loads(tuple(map(str, nltk.data.path))):
        fallback = str(private_copy(SHIPPED))
        nltk.data.path[:] = [fallback, *(entry for entry in nltk.data.path if entry != fallback)]
    return name()


def name() -> str:
    """Name the model on NLTK's search path: "punkt_tab", "fallback", or "none"."""
    import nltk

    try:
        found = nltk.data.find("tokenizers/punkt_tab/english/")
    except LookupError:
        return "none"
    return "fallback" if Path(str(found)).is_relative_to(private_copy(SHIPPED)) else "punkt_tab"


def _loads(places: tuple[str, ...]) -> bool:
    """Return whether NLTK loads the model; a partly unpacked one is on the path but cannot be read."""
    try:
        _load(places)
    except LookupError:
        return False
    return True


@lru_cache(maxsize=1)
def _load(places: tuple[str, ...]) -> None:
    """Load the model from NLTK's search path, which `places` is; once is enough until that changes."""
    from nltk.tokenize.punkt import PunktTokenizer

    PunktTokenizer("english")


@cache
def private_copy(folder: Path) -> Path:
    """Copy a folder to where only this account can write; removed when the process ends."""
    copy = Path(tempfile.mkdtemp(prefix="recover-sentences-")).resolve()
    atexit.register(shutil.rmtree, copy, ignore_errors=True)
    for path in sorted(folder.rglob("*")):
        place = copy / path.relative_to(folder)
        if path.is_dir():
            place.mkdir(mode=0o700)
        else:
            place.touch(mode=0o600)
            place.write_bytes(path.read_bytes())
    return copy
