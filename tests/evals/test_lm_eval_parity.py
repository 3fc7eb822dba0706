"""The four IFEval figures of a checkpoint are those of lm-eval's own run of the same weights."""

from __future__ import annotations

from pathlib import Path

from benchmarks.outcomes.lm_eval_parity import FIGURES, asked, run_by_lm_eval, table
from evals import ifeval
from pipelines.machine.init_home import initialise
from pipelines.microworld.world import write_world
from pipelines.runs.workspace import Workspace

COUNT, TOKENS = 24, 48


def test_figures_and_answers_are_lm_evals(tmp_path: Path) -> None:
    write_world(tmp_path / "world", cycle=1, seed=5)
    prompts = str(tmp_path / "world" / "ifeval.jsonl")
    with Workspace.open(tmp_path / "home") as ws:
        initialise(ws, model="microworld")
        clean = ws.clean()
        figures, items = asked(ws, clean.id, prompts, COUNT, TOKENS)
    theirs = ifeval.score_runs([run_by_lm_eval(clean.path, TOKENS, prompts, COUNT)])
    assert {item.key: item.response for item in items} == {one.key: one.response for one in theirs.items}
    assert figures == {key: theirs.details[key] for key in FIGURES.values()}
    assert figures["inst_level_strict_acc"] > 0.5, "a model that follows instructions, cut off at few tokens"
    assert table(figures, items, theirs)[-1]["recover"] == f"{COUNT} are the same"
