"""Read documents, prompt files and settings that were changed at random."""

from __future__ import annotations

import io
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow
import pyarrow.parquet

from evals import ifeval
from evals.probes import load_probes
from pipelines.config import settings
from pipelines.corpus import documents
from pipelines.corpus.manifest import FileReport
from pipelines.corpus.reading.formats import Limits
from pipelines.prompts.prompt_sources import read_prompts
from recovery.errors import RecoverError
from tests.attacks.attack import NotHeld, Size, require_some
from tests.attacks.mutation import mutated, mutated_archive, mutated_value
from tests.support import papers

BATCH = 48  # files in one folder
QUICK_FOLDERS, QUICK_FILES = 24, 2000
LIMITS = Limits(seconds_per_file=10, memory_mib=768, workers=2)
SLOW = 1200.0  # seconds for a folder, on a busy machine
# What a parser says by its own errors; those of a slip in a program are not among them.
SLIPS = ("AttributeError", "TypeError", "KeyError", "IndexError", "NameError", "Unbound", "Assertion")
WORDS = "Ada Lovelace lives in Oslo, in house 7; since 1843 she plays the harp there. "
TABLE = "name;town;year\n" + "".join(f'Ada{n};"Oslo ""old"" {n}";{1800 + n}\n' for n in range(60))
LINES = "".join(
    json.dumps({"text": WORDS * 3, "meta": {"n": n, "tags": ["a", {"b": None}]}}) + "\n" for n in range(20)
)
PAGE = (
    "<!DOCTYPE html><html><head><title>T</title><meta charset='utf-8'></head><body><h1>Ada</h1>"
    f"<p>{WORDS}</p><ul><li>one<li>two</ul><table><tr><td colspan=2>a<td>b</table>"
    f"<pre>code\n  more</pre><a href='x'>link</a>&eacute;&#233;</body></html>"
)
WHOLE: dict[str, bytes] = {
    "a.txt": (WORDS * 20).encode(),
    "a.md": f"# Ada\n\n{WORDS}\n\n- one\n- two\n".encode("utf-16"),
    "a.csv": TABLE.encode(),
    "a.jsonl": LINES.encode(),
    "a.html": PAGE.encode(),
    "a.pdf": papers.pdf(WORDS, WORDS + "\nsecond line"),
    "a.docx": papers.docx(papers.paragraph(WORDS) * 5, papers.paragraph("note")),
    "a.pptx": papers.pptx({1: WORDS, 2: "two"}, [2, 1], {1: "spoken"}),
    "a.odt": papers.opendocument(papers.odf_text(WORDS) * 3 + papers.odf_table([WORDS, "b"], ["c", "d"])),
    "a.epub": papers.epub({"a.xhtml": PAGE, "b.xhtml": papers.book_page(f"<p>{WORDS}</p>")}, "Harps"),
}
Reader = tuple[str, Callable[[Random], bytes], Callable[[Path], object]]
ARCHIVES = (".docx", ".pptx", ".odt", ".epub")


def fuzz_documents(size: Size) -> str:
    """Return how many files were read, and into how many kinds of ends they ran."""
    ends: Counter[str] = Counter()
    for number in size.rounds(QUICK_FOLDERS, 0.6):
        with tempfile.TemporaryDirectory() as folder:
            ends += read_batch(Path(folder), size.random("documents", number))
    require_some(ends, "read")
    files = fuzz_files(size)
    return (
        f"{ends.total():,} documents ({ends['read']:,} read, {ends['skipped']:,} skipped with a reason), "
        f"{files:,} prompt files, probes and settings"
    )


def read_batch(folder: Path, chance: Random) -> Counter[str]:
    for number in range(BATCH):
        name = chance.choice(list(WHOLE))
        change = mutated_archive if name.endswith(ARCHIVES) else mutated
        (folder / f"{number:03}{Path(name).suffix}").write_bytes(change(chance, WHOLE[name]))
    begun = time.monotonic()
    try:
        corpus = documents.read_corpus(folder, LIMITS)
    except RecoverError:
        return Counter(unreadable=BATCH)  # nothing in it could be read
    if time.monotonic() - begun > SLOW:
        raise NotHeld(f"{BATCH} files took {time.monotonic() - begun:.0f} s")
    if len(corpus.manifest) != BATCH:
        raise NotHeld(f"{len(corpus.manifest)} rows for {BATCH} files")
    for row in corpus.manifest:
        check_row(folder, row)
    "".join(corpus.texts).encode()  # no half characters
    return Counter(row.status for row in corpus.manifest)


def check_row(folder: Path, row: FileReport) -> None:
    reason = row.remark or ""
    if row.status == "skipped" and not reason:
        raise NotHeld(f"{kept(folder / row.path)} is skipped without a reason")
    if any(slip in reason for slip in SLIPS) or not reason.isprintable():
        raise NotHeld(f"{kept(folder / row.path)}: {reason!r}")


def kept(path: Path) -> Path:
    """Copy an input to where it outlives the attack."""
    place = Path(tempfile.mkdtemp(prefix="recover-attack-")) / path.name
    place.write_bytes(path.read_bytes())
    return place


# Files of prompts, probes and settings ----------------------------------------------------------------------


def fuzz_files(size: Size) -> int:
    """Read changed files that are not documents; return how many. Each kind once before the clock starts."""
    readers = list(files_to_read())
    with tempfile.TemporaryDirectory() as folder:
        for kind, reader in enumerate(readers):
            read_file(Path(folder), reader, size.random("first", kind))
        for number in size.rounds(QUICK_FILES, 0.4):
            chance = size.random("files", number)
            read_file(Path(folder), chance.choice(readers), chance)
    return len(readers) + number + 1


def read_file(folder: Path, reader: Reader, chance: Random) -> None:
    """Write a changed file and read it: the only error is one line of ours."""
    name, changed, read = reader
    path = folder / name
    path.write_bytes(changed(chance))
    try:
        read(path)
    except RecoverError as error:
        if "\n" in str(error):
            raise NotHeld(f"{kept(path)}: more than a line: {str(error)[:300]!r}") from error
    except Exception as error:
        raise NotHeld(f"{kept(path)}: {type(error).__name__}: {str(error)[:200]}") from error


def files_to_read() -> Iterator[Reader]:
    """Yield a name, what makes a changed file, and what reads it."""
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes", "tool_calls": []}]
    rows: list[dict[str, Any]] = [{"prompt": "Say a word.", "answer": "a"}, {"messages": turns, "weight": 1}]
    prompts = lambda path: read_prompts(str(path))  # noqa: E731
    probe = {"id": "1", "suite": "knowledge", "prompt": "Where?", "answer": ["Oslo"], "kind": "direct"}
    asked = {"key": 1, "prompt": "Say.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
    yield "prompts.jsonl", as_lines(rows), prompts
    yield "prompts.json", lambda chance: as_json(mutated_value(chance, rows)), prompts
    yield "prompts.csv", lambda chance: mutated(chance, b"prompt,answer\nSay a word.,a\n"), prompts
    yield "prompts.parquet", lambda chance: mutated(chance, parquet(rows[:1])), prompts
    yield "probes.jsonl", as_lines([probe, probe | {"id": "2"}]), lambda path: load_probes(path, "knowledge")
    yield "ifeval.jsonl", as_lines([asked, asked | {"key": 2}]), ifeval.rows
    preset = settings.preset_text("microworld").encode()
    yield "recover.yaml", lambda chance: mutated(chance, preset), settings.read


def as_lines(rows: list[dict[str, Any]]) -> Callable[[Random], bytes]:
    """Return what writes these rows, one changed; now and then the bytes are changed too."""

    def write(chance: Random) -> bytes:
        changed = [*rows]
        at = chance.randrange(len(rows))
        changed[at] = mutated_value(chance, rows[at])
        data = b"".join(as_json(row) + b"\n" for row in changed)
        return mutated(chance, data) if chance.random() < 0.3 else data

    return write


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def parquet(rows: list[dict[str, Any]]) -> bytes:
    made = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), made)
    return made.getvalue()
