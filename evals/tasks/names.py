"""Check suite names against lm-eval's YAML files without importing lm-eval, whose index takes ten seconds.

The names are a superset of lm-eval's (children listed by a group are included): an unknown name is refused at
once, a known one is resolved by evals/tasks/runner.py.
"""

from __future__ import annotations

import difflib
import importlib.util
import os
import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from evals import ifbench
from evals.families.table import FAMILIES
from evals.ifeval import FURTHER, IFEVAL
from evals.probes import PROBE_SUITES
from recovery.errors import InputError

OURS = (IFEVAL, *PROBE_SUITES, *FAMILIES)
IFBENCH = ifbench.SUITE
PRESETS = ("truthfulqa_mc2", "mmlu", "gsm8k")
_KEYS = re.compile(
    rb"""^['"]?(?:task|group|tag)['"]?[ \t]*:(.*(?:\n[ \t]*-.*|\n[ \t]+\S.*|\n[ \t]*#.*)*)""", re.MULTILINE
)
_INCLUDE = re.compile(rb"""^['"]?include['"]?[ \t]*:[ \t]*['"]?([^\s'"#]+)""", re.MULTILINE)
_NAME = re.compile(rb"[^\s'\"\[\]{},:#]+")


def require_families(names: Sequence[str]) -> None:
    """Refuse the first name that is no family of behaviour."""
    for name in names:
        if name not in FAMILIES:
            raise InputError(
                f"--behaviours {name}: there is no such family: choose among {', '.join(FAMILIES)}"
            )


def require_listed(suites: str | None, folder: str | Path | None = None) -> None:
    """Refuse a list with an unknown name, as in "ifeval,mmlu"; None stands for the default suites."""
    if suites:
        require(listed(suites), folder)


def listed(suites: str | None) -> tuple[str, ...]:
    """Return the names in a list such as "ifeval, knowledge"."""
    return tuple(name.strip() for name in (suites or "").split(",") if name.strip())


def require(names: Sequence[str], folder: str | Path | None = None) -> None:
    """Refuse the first name that is no suite, no task of lm-eval and no task of the folder."""
    if IFBENCH in names:
        ifbench.require()
    asked = [name for name in names if name not in (*OURS, FURTHER, IFBENCH, *PRESETS)]
    if not asked:
        return
    known = _shipped()
    if folder:
        known = known | _named_in(Path(folder))
    for name in asked:
        if name not in known:
            raise unknown(name, known)


def unknown(name: str, known: Iterable[str]) -> InputError:
    near = difflib.get_close_matches(name, sorted({*OURS, *known}), n=1, cutoff=0.7)
    hint = f"did you mean {near[0]}? Choose" if near else "choose"
    choice = f"{', '.join(OURS)}, {IFBENCH}, or any task of lm-eval, such as {PRESETS[0]}"
    return InputError(f"no suite {name!r}: {hint} among {choice}")


@cache
def _shipped() -> frozenset[str]:
    """Return the names in the installed lm-eval."""
    found = importlib.util.find_spec("lm_eval")
    places = found.submodule_search_locations if found else None
    return frozenset(name for place in places or () for name in _named_in(Path(place) / "tasks"))


def _named_in(folder: Path) -> set[str]:
    """Return the tasks, groups and tags in a folder's YAML files and the files that they include."""
    found: set[bytes] = set()
    waiting = list(folder.rglob("*.yaml"))
    seen = set[Path]()
    while waiting:
        path = Path(os.path.normpath(waiting.pop()))
        if path in seen or not path.is_file():
            continue
        seen.add(path)
        text = path.read_bytes()
        waiting += [path.parent / os.fsdecode(name) for name in _INCLUDE.findall(text)]
        for value in _KEYS.findall(text):
            found.update(_NAME.findall(value))
    return {name.decode(errors="replace") for name in found}
