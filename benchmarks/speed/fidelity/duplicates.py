"""Find nearly equal pages by this project's signatures and by datasketch; compare with an exact count."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

from benchmarks.common import Row
from benchmarks.speed.fidelity.readers import ours_by
from pipelines.corpus.reading import similar
from pipelines.corpus.reading.formats import Unreadable
from pipelines.corpus.reading.html import read_html


def alike(folder: Path, most: int = 400) -> list[Row]:
    """Find pairs of pages by both ways; the reference is the exact share of runs of five words."""
    texts = [ours_by(read_html)(page) for page in sorted(folder.rglob("*.html"))[:most] if _is_read(page)]
    texts = [text for text in texts if len(text.split()) >= 200]
    sets = [set(similar.shingles(text).tolist()) for text in texts]
    wanted = set()
    for one, other in combinations(range(len(texts)), 2):
        shared = len(sets[one] & sets[other])
        if shared >= similar.SIMILAR * (len(sets[one]) + len(sets[other]) - shared):
            wanted.add(other)
    return [
        _alike_row(name, find, texts, wanted)
        for name, find in (("ours", _ours_alike), ("datasketch", _sketch))
    ]


def _is_read(page: Path) -> bool:
    try:
        return bool(ours_by(read_html)(page))
    except Unreadable:
        return False


def _alike_row(name: str, find: Callable[[list[str]], set[int]], texts: list[str], wanted: set[int]) -> Row:
    begun = time.perf_counter()
    found = find(texts)
    seconds = time.perf_counter() - begun
    tracemalloc.start()
    find(texts)
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {
        "what": "similar",
        "reader": name,
        "files": len(texts),
        "recall": len(found & wanted) / max(1, len(wanted)),
        "precision": len(found & wanted) / max(1, len(found)),
        "s": seconds,
        "KB a file": held / 1024 / max(1, len(texts)),
    }


def _ours_alike(texts: list[str]) -> set[int]:
    known = similar.SimilarFiles()
    found = set()
    for number, text in enumerate(texts):
        signature = similar.Signature()
        signature.add(text)
        if known.add(str(number), None, signature):
            found.add(number)
    return found


def _sketch(texts: list[str]) -> set[int]:
    from datasketch import MinHash, MinHashLSH

    index = MinHashLSH(threshold=similar.SIMILAR, num_perm=128)
    found = set()
    for number, text in enumerate(texts):
        said = text.lower().split()
        sketch = MinHash(num_perm=128)
        sketch.update_batch([" ".join(said[at : at + 5]).encode() for at in range(max(1, len(said) - 4))])
        if index.query(sketch):
            found.add(number)
        index.insert(str(number), sketch)
    return found
