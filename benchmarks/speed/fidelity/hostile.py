"""Read hostile files in limited processes, by this project's readers and by libraries."""

from __future__ import annotations

import concurrent.futures
import os
import pickle
import re
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import Row
from benchmarks.speed.fidelity.readers import Reader, docx_text, ours_by, trafilatura_text
from pipelines.corpus.documents import read_folder
from pipelines.corpus.manifest import FileReport
from pipelines.corpus.reading import pool
from pipelines.corpus.reading.formats import Unreadable
from pipelines.corpus.reading.html import read_html
from pipelines.corpus.reading.office import read_docx
from tests.support import papers

HOSTILE: dict[str, bytes] = {
    "zip bomb (docx)": papers.zip_bomb(),
    "entity bomb (docx)": papers.entity_bomb(),
    "deep page (html)": b"<div>" * 100_000 + b"inside" + b"</div>" * 100_000,
    "a row of cells without end (html)": b"<table><tr>" + b"<td>cell" * 60_000,
}


def hostile() -> list[Row]:
    """Return the seconds that each hostile file takes, in processes with 1 GiB of memory and 20 s."""
    rows = []
    with tempfile.TemporaryDirectory() as place:
        for name, data in HOSTILE.items():
            suffix = re.findall(r"\((\w+)\)", name)[0]
            path = Path(place) / f"file.{suffix}"
            path.write_bytes(data)
            ours = {"html": ours_by(read_html), "docx": ours_by(read_docx)}[suffix]
            theirs = {"html": trafilatura_text, "docx": docx_text}[suffix]
            rows.append(
                {"hostile file": name, "ours": _in_child(ours, path), "library": _in_child(theirs, path)}
            )
    rows.append(
        {"hostile file": "a parser that answers with a pickle", "ours": _our_pickled(), "library": _pickled()}
    )
    return rows


def _in_child(read: Reader, path: Path) -> str:
    """Read in a forked process with limits; return what came of it."""
    import resource

    begun = time.perf_counter()
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
        resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        code = 1
        try:
            code = 0 if read(path) else 3
        except (Unreadable, RecursionError):
            code = 2
        except MemoryError:
            code = 4
        except BaseException:  # noqa: BLE001 - a child must not return
            code = 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    outcomes = {0: "read", 2: "refused", 3: "nothing", 4: "out of memory"}
    outcome = outcomes.get(os.waitstatus_to_exitcode(status), "killed by a limit")
    return f"{outcome}, {time.perf_counter() - begun:.1f} s"


class _Runs:
    """A pickle payload with which a compromised parser could attack a pool that unpickles results."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.getpid, ()


def _answer_with_code() -> _Runs:
    return _Runs()


def _pickled() -> str:
    """Make concurrent.futures return a result that runs a function on unpickling."""
    with concurrent.futures.ProcessPoolExecutor(1) as executor:
        answer: object = executor.submit(_answer_with_code).result()
    return "runs its code in the parent" if answer == os.getpid() else "refused"


def _our_pickled() -> str:
    """Make a parsing process of this project's pool return such a pickle."""
    answer = pickle.dumps(_Runs())
    start = pool.START
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "a.html").write_text("<p>page")
        try:
            pool.START = f"import os, sys; os.write(int(sys.argv[1]), {answer!r})"
            (report,) = [one for one in read_folder(Path(place)) if isinstance(one, FileReport)]
        finally:
            pool.START = start
    return "refused" if report.status == "skipped" else "read"
