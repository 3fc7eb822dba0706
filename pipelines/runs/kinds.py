"""The kinds of runs; the id of a run begins with its kind."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """What a kind of run spends time on: its own work, or only the runs below it.

    On a `shared` one all processes work, on others the first alone."""

    name: str
    works_itself: bool = True
    shared: bool = False


KINDS = {
    kind.name: kind
    for kind in (
        Kind("init"),
        Kind("midtrain", shared=True),
        Kind("distill", shared=True),
        Kind("eval"),
        Kind("merge"),
        Kind("drift"),
        Kind("demo", works_itself=False),
        Kind("cycle", works_itself=False),
        Kind("choose", works_itself=False),
        Kind("sweep", works_itself=False),
        Kind("locate", works_itself=False),
        Kind("retrieval", works_itself=False),
        Kind("pilot", works_itself=False),
    )
}


def kind_of(name: str) -> Kind:
    """Return a kind by its name; one that is not listed, as of a benchmark, works itself, and alone."""
    return KINDS.get(name, Kind(name))
