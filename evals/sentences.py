"""Which sentence model NLTK will use, settled before anything is generated.

IFEval's checkers split sentences with NLTK's Punkt, whose English model is a separate download; without it
lm-eval tries to download it at import and fails at scoring. Nothing is downloaded here: where the model is
absent, a small one in the same format (see sentence_model/README.md) is put on NLTK's search path, so that
the very same code runs, offline, and the result says which model it was.
"""

from __future__ import annotations

from pathlib import Path

FALLBACK = Path(__file__).parent / "sentence_model"
FALLBACK_NOTE = (
    "sentences were split with the built-in fallback model, as NLTK's punkt_tab is not installed "
    "(counts agree on 99 % of answers): python -m nltk.downloader punkt_tab"
)


def settle() -> str:
    """Make a sentence model available and name it: "punkt_tab" or "fallback"."""
    import nltk

    if not _loads():
        _drop_fallback()
        nltk.data.path.insert(0, str(FALLBACK))
    return name()


def name() -> str:
    """The model that NLTK finds now: "punkt_tab", "fallback", or "none"."""
    import nltk

    try:
        found = nltk.data.find("tokenizers/punkt_tab/english/")
    except LookupError:
        return "none"
    return "fallback" if Path(str(found)).is_relative_to(FALLBACK) else "punkt_tab"


def _loads() -> bool:
    """Loading is the only proof: a half-unpacked model is found but cannot be read."""
    from nltk.tokenize.punkt import PunktTokenizer

    try:
        PunktTokenizer("english")
    except LookupError:
        return False
    return True


def _drop_fallback() -> None:
    import nltk

    nltk.data.path[:] = [entry for entry in nltk.data.path if entry != str(FALLBACK)]
