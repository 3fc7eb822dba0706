"""Locate what a checkpoint lost: put the clean weights back part by part, and score each mixture.

Parts are the embeddings, the head, the norms and groups of layers. Each part that moved is put back alone;
if none of them is enough, parts are added in the order of the behaviour that each brought back. A mixture
is enough if it passes the verdict of a cycle in the checkpoint's place. As several are tried on the same
items, every one is judged at alpha divided by the number of trials (Bonferroni).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evals import power, verdict
from evals.ifeval import IFEVAL
from pipelines.config.jobs import LocateJob
from pipelines.evaluate import evaluate, evaluation_within
from pipelines.evaluation.recorded_scores import Items, beside, items_by_suite
from pipelines.evaluation.suites import facts_by_axis, independent_by_axis, suites_of
from pipelines.runs.pinned_inputs import pinned
from pipelines.runs.stage_runner import Result, Stage, run_job, run_stage
from pipelines.runs.workspace import Workspace
from recovery.counted import counted
from recovery.errors import InputError

if TYPE_CHECKING:
    from recovery.inspection.weight_parts import Part

Row = dict[str, Any]


def locate(ws: Workspace, job: LocateJob, *, key: str | None = None) -> Result:
    """Return {"parts": one row each, "sets": rows of several, "offered": the smallest that is enough}."""
    if IFEVAL not in job.suites:
        raise InputError("--suite needs ifeval: the parts are compared by the behaviour that they bring back")
    job = pinned(ws, job)
    return run_job(ws, "locate", _work, job, key=key)


def _work(ws: Workspace, job: LocateJob, stage: Stage) -> Result:
    from recovery.inspection.weight_parts import parts

    student, clean = ws.checkpoint(job.checkpoint), ws.checkpoint(job.clean)
    found = parts(student.path, clean.path, job.groups, ws.config.model.trust_remote_code)
    moved = [part for part in found if part.moved > 0]
    if not moved:
        raise InputError(f"{student.id} has the weights of {clean.id}: there is nothing to put back")
    trials = max(1, 2 * len(moved) - 2)  # each part, then sets of two up to all but one
    _say_power(job, stage, verdict.ALPHA / trials)
    evaluated = {
        "clean": _evaluated(ws, job, stage, job.clean, "clean"),
        "checkpoint": _evaluated(ws, job, stage, job.checkpoint, "checkpoint"),
    }
    search = _Search(ws, job, stage, _ends(ws, job, evaluated), verdict.ALPHA / trials)
    singles = [search.row((part,)) for part in moved]
    passing = [row for row in singles if row["passed"]]
    sets = [] if passing else search.growing(moved, singles)
    offered = min(passing, key=lambda row: row["weights"]) if passing else _last_passing(sets)
    result = {
        "checkpoint": student.id,
        "clean": clean.id,
        "alpha": search.alpha,
        "ends": {label: found["scores"] for label, found in evaluated.items()},
        "parts": [*singles, *(_unmoved(part) for part in found if part.moved == 0)],
        "sets": sets,
        "offered": offered,
    }
    return result | {"words": in_words(result)}


def _say_power(job: LocateJob, stage: Stage, alpha: float) -> None:
    """Say which axes have too few questions for so many trials: what is enough might well not pass."""
    suites = suites_of(evaluation_within(job, job.clean, "clean", job.settings))
    margins = job.settings.margins()
    counts, facts = independent_by_axis(suites, margins), facts_by_axis(suites, margins)
    for line in power.power_warning(counts, margins, alpha=alpha, facts=facts):
        stage.say(f"  locate       {line}")


def _ends(ws: Workspace, job: LocateJob, evaluated: dict[str, Result]) -> Items:
    """Return the items of the clean model and the checkpoint, by suite; the verdict calls it midtrained."""
    stages = {"clean": evaluated["clean"], "midtrained": evaluated["checkpoint"]}
    return items_by_suite(ws, {label: found["score_ids"] for label, found in stages.items()}, job.suites)


def _evaluated(ws: Workspace, job: LocateJob, stage: Stage, checkpoint: str, label: str) -> Result:
    asked = evaluation_within(job, checkpoint, label, job.settings)
    return evaluate(ws, asked, parent=stage.id, key=f"eval:{label}")


@dataclass(frozen=True)
class _Search:
    """The trials of one checkpoint, each judged against the same two ends."""

    ws: Workspace
    job: LocateJob
    stage: Stage
    ends: Items
    alpha: float

    def growing(self, moved: Sequence[Part], singles: Sequence[Row]) -> list[Row]:
        """Add the parts one after the other, the most useful first, until a set passes."""
        order = sorted(zip(moved, singles, strict=True), key=lambda pair: -_behaviour(pair[1]))
        rows: list[Row] = []
        for count in range(2, len(order)):
            rows.append(self.row(tuple(part for part, _ in order[:count])))
            if rows[-1]["passed"]:
                break
        return rows

    def row(self, chosen: tuple[Part, ...]) -> Row:
        """Put some parts back, score the mixture and judge it."""
        names = [part.name for part in chosen]
        label = "+".join(names)
        checkpoint = self._mixed(chosen, f"put back:{label}")
        found = _evaluated(self.ws, self.job, self.stage, checkpoint, label)
        mixed = items_by_suite(self.ws, {"recovered": found["score_ids"]}, self.ends)
        judged = verdict.verdict(beside(self.ends, mixed), self.job.settings.margins(), self.alpha)
        return {
            "parts": names,
            "weights": sum(part.weights for part in chosen),
            "moved": chosen[0].moved if len(chosen) == 1 else None,
            "checkpoint": checkpoint,
            "scores": found["scores"],
            "axes": {name: _bounds(axis) for name, axis in judged["axes"].items()},
            "passed": verdict.accepted(judged, self.job.required),
        }

    def _mixed(self, chosen: tuple[Part, ...], key: str) -> str:
        """Return the checkpoint with these parts of the clean model in place of its own."""
        settings = {
            "student": self.job.checkpoint,
            "other": self.job.clean,
            "weight": 1.0,
            "kind": "parts",
            "parts": [part.name for part in chosen],
        }
        done = run_stage(
            self.ws,
            "merge",
            lambda stage: {"checkpoint": self._published(stage, chosen, settings), "weight": 1.0},
            config=settings,
            parent=self.stage.id,
            key=key,
        )
        return str(done["checkpoint"])

    def _published(self, stage: Stage, chosen: tuple[Part, ...], settings: Row) -> str:
        from recovery.models.merging import put_back

        student, clean = self.ws.checkpoint(self.job.checkpoint), self.ws.checkpoint(self.job.clean)
        tensors = frozenset[str]().union(*(part.tensors for part in chosen))
        return self.ws.publish_files(
            lambda target: put_back(
                student.path,
                clean.path,
                target,
                tensors,
                on_tensor=stage.step,
                trust_remote_code=self.ws.config.model.trust_remote_code,
            ),
            parent=student,
            run_id=stage.id,
            config={"stage": "merge", **settings},
        ).id


def _bounds(axis: Row) -> Row:
    """Return what a figure needs of an axis: the difference to its reference, and the bounds."""
    names = ("difference", "lower_bound", "upper_bound", "margin", "outcome", "reference", "n", "needed_n")
    return {name: axis.get(name) for name in names}


def _unmoved(part: Part) -> Row:
    row = {"parts": [part.name], "weights": part.weights, "moved": 0.0, "checkpoint": None}
    return row | {"scores": {}, "axes": {}, "passed": False}


def _behaviour(row: Row) -> float:
    return float(row["axes"][verdict.BEHAVIOUR]["difference"])


def _last_passing(rows: Sequence[Row]) -> Row | None:
    return rows[-1] if rows and rows[-1]["passed"] else None


def in_words(result: Result) -> str:
    """Say which parts to put back, or which came nearest and what the search lacked."""
    offered = result["offered"]
    if offered:
        bound = offered["axes"][verdict.BEHAVIOUR]["lower_bound"]
        return (
            f"put back {', '.join(offered['parts'])}: behaviour at most {100 * max(0.0, -bound):.1f} points "
            "below the clean model, a 95 % bound over all that was tried "
            f"(checkpoint {offered['checkpoint']})"
        )
    tried = [row for row in [*result["parts"], *result["sets"]] if row["axes"]]
    nearest = max(tried, key=_behaviour)
    axis = nearest["axes"][verdict.BEHAVIOUR]
    asked = counted(axis["n"], "prompt")
    return (
        f"no part and no set of parts was shown to be enough; {', '.join(nearest['parts'])} came nearest in "
        f"behaviour ({100 * axis['difference']:+.1f} points against the clean model, bounds "
        f"{100 * axis['lower_bound']:+.1f} to {100 * axis['upper_bound']:+.1f}, on {asked})"
    )
