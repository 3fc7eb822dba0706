"""Every file that decides what a run trains on is hashed when it begins, and a changed one refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.config.jobs import CycleJob, DistillJob, Job, MidtrainJob
from pipelines.config.overrides import changed, override
from pipelines.config.sections.model import ModelConfig
from pipelines.distillation.inputs import read_context
from pipelines.prompts.leaks import kept_evaluation_prompts
from pipelines.runs import kept_probes
from pipelines.runs.pinned_inputs import inherited, pinned
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError
from recovery.methods.table import get
from tests.support.small_cycles import make_home
from tests.support.stages import PRESET


def jobs(folder: Path) -> dict[str, Job]:
    """A job of each training; all read the same files."""
    files = {name: folder / name for name in ("prompts.jsonl", "ifeval.jsonl", "probes.jsonl", "judge.py")}
    for path in files.values():
        path.write_text("as it was")
    asked = {"ifeval": str(files["ifeval.jsonl"]), "probes": str(files["probes.jsonl"])}
    evaluation = override(PRESET.eval, asked)
    recovery = override(PRESET.distill, {"method": "rl", "reward": f"{files['judge.py']}:judge"})
    prompts, docs = str(files["prompts.jsonl"]), str(folder / "docs")
    settings = PRESET.model_copy(update={"distill": recovery, "eval": evaluation})
    return {
        "midtrain": MidtrainJob(docs=docs, student="base", settings=PRESET.midtrain, evaluation=evaluation),
        "distill": DistillJob(
            student="base", teacher="base", prompts=prompts, settings=recovery, evaluation=evaluation
        ),
        "cycle": CycleJob(
            docs=docs, student="base", clean="base", settings=settings, prompts=prompts, suites=("ifeval",)
        ),
    }


@pytest.fixture
def ws(tmp_path: Path) -> Workspace:
    return make_home(tmp_path)


@pytest.mark.parametrize(
    ("kind", "name", "file"),
    [
        ("midtrain", "IFEval prompts", "ifeval.jsonl"),
        ("midtrain", "probes", "probes.jsonl"),
        ("distill", "IFEval prompts", "ifeval.jsonl"),
        ("distill", "probes", "probes.jsonl"),
        ("distill", "reward", "judge.py"),
        ("cycle", "reward", "judge.py"),
    ],
)
def test_a_run_whose_input_changed_is_refused(
    ws: Workspace, tmp_path: Path, kind: str, name: str, file: str
) -> None:
    begun = pinned(ws, jobs(tmp_path)[kind])
    assert pinned(ws, begun) == begun
    (tmp_path / file).write_text("as it is now")
    with pytest.raises(InputError, match=rf"{name} .*{file}.*: changed since the run began"):
        pinned(ws, begun)


def test_prompts_that_a_run_does_not_read_may_change(ws: Workspace, tmp_path: Path) -> None:
    """Of a method that reads pairs alone, and of a midtraining without chat, which end a cycle's reading."""
    made = jobs(tmp_path)
    prompts, pairs = (
        str(tmp_path / "prompts.jsonl"),
        {"method": "sft", "pairs": str(tmp_path / "pairs.jsonl")},
    )
    of_pairs = override(PRESET.distill, pairs)
    chat = changed(PRESET, {"midtrain.mix": {"new": 0.5, "earlier": 0.0, "questions": 0.0, "chat": 0.5}})

    def with_settings(job: Job, settings: Any) -> Job:
        return pinned(ws, job.model_copy(update={"settings": settings, "prompts": prompts}))

    unread = [
        with_settings(made["midtrain"], PRESET.midtrain),
        with_settings(made["distill"], of_pairs),
        with_settings(made["cycle"], PRESET.model_copy(update={"distill": of_pairs})),
    ]
    read = [
        with_settings(made["midtrain"], chat.midtrain),
        with_settings(made["distill"], PRESET.distill),
        with_settings(made["cycle"], PRESET),
        with_settings(made["cycle"], chat.model_copy(update={"distill": of_pairs})),
    ]
    (tmp_path / "prompts.jsonl").write_text("as it is now")
    assert [pinned(ws, job) for job in unread] == unread
    for job in read:
        with pytest.raises(InputError, match=r"prompts .*prompts.jsonl.*: changed since the run began"):
            pinned(ws, job)


def test_questions_that_change_while_a_cycle_begins_are_not_kept_as_those_that_it_asks(
    ws: Workspace, tmp_path: Path
) -> None:
    """They were kept under the hash of the earlier ones, which later cycles then asked."""
    made = jobs(tmp_path)["cycle"]
    assert isinstance(made, CycleJob)
    begun = pinned(ws, made)
    (tmp_path / "probes.jsonl").write_text("as it is now")
    with pytest.raises(InputError, match=r"probes .*probes.jsonl.*: changed since the run began"):
        kept_probes.keep(ws, begun)
    assert not (ws.home / "probes").exists()
    (tmp_path / "probes.jsonl").write_text("as it was")
    as_kept = kept_probes.keep(ws, begun)
    (kept,) = (ws.home / "probes").iterdir()
    assert kept.read_text() == "as it was"
    (tmp_path / "probes.jsonl").write_text("as it is now")
    with pytest.raises(InputError, match=rf"restore it from {kept}, or begin a new run"):
        pinned(ws, begun)
    assert as_kept == kept_probes.read_as_kept(ws, begun)
    read = pinned(ws, as_kept)
    assert (read.inputs, read.sources()["probes"]) == (begun.inputs, str(kept))


def test_what_is_gone_when_a_run_is_resumed_may_only_come_back_as_it_was(
    ws: Workspace, tmp_path: Path
) -> None:
    """Its hash was forgotten, and any other file then passed for it."""
    begun = pinned(ws, jobs(tmp_path)["cycle"])
    (tmp_path / "probes.jsonl").unlink()
    resumed = pinned(ws, begun)
    assert resumed == begun and isinstance(resumed, CycleJob)
    with pytest.raises(InputError, match=r"probes .*probes.jsonl.*: gone since the run began: restore it"):
        kept_probes.keep(ws, resumed)
    (tmp_path / "probes.jsonl").write_text("as it is now")
    with pytest.raises(InputError, match=r"probes .*probes.jsonl.*: changed since the run began"):
        pinned(ws, resumed)


def test_files_that_a_home_holds_are_read_where_it_was_moved_to_if_they_are_as_they_were(
    ws: Workspace, tmp_path: Path
) -> None:
    held = [ws.home / name for name in ("prompts/further.jsonl", "prompts/self.jsonl", "probes/0.jsonl")]
    for path in held:
        path.parent.mkdir(exist_ok=True)
        path.write_text("as it was")
    further, prompts, probes = map(str, held)
    made = jobs(tmp_path)["cycle"]
    assert isinstance(made, CycleJob)
    settings = changed(made.settings, {"eval.further_prompts": further})
    job = made.model_copy(update={"settings": settings, "prompts": prompts, "earlier": {1: probes}})
    begun = pinned(ws, job)
    old, ws.home = str(ws.home), ws.home.rename(tmp_path / "moved")
    found = pinned(ws, begun)
    assert found.inputs == begun.inputs
    there = {name: place.replace(old, str(ws.home)) for name, place in begun.sources().items()}
    assert found.sources() == there != begun.sources()
    (ws.home / "prompts" / "further.jsonl").write_text("as it is now")
    there["further prompts"] = further  # which is gone
    assert pinned(ws, begun).sources() == there


@pytest.mark.parametrize("place", ["ifeval.jsonl", "prompts/ifeval.jsonl", "own/deep/ifeval.jsonl"])
def test_a_file_anywhere_in_a_home_that_was_moved_is_found_there(
    ws: Workspace, tmp_path: Path, place: str
) -> None:
    file = ws.home / place
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("as it was")
    made = jobs(tmp_path)["cycle"]
    assert isinstance(made, CycleJob)
    settings = changed(made.settings, {"eval.ifeval": str(file)})
    begun = pinned(ws, made.model_copy(update={"settings": settings}))
    assert isinstance(begun, CycleJob)
    ws.home = ws.home.rename(tmp_path / "moved")
    for stage in (begun, inherited(DistillJob.of(begun, "base", begun.settings.distill), begun)):
        assert pinned(ws, stage).sources()["IFEval prompts"] == str(ws.home / place)


@pytest.mark.parametrize("held", [True, False])
def test_documents_are_read_where_the_home_was_moved_to_or_the_folder_that_it_lies_in(
    ws: Workspace, tmp_path: Path, held: bool
) -> None:
    docs = (ws.home if held else tmp_path) / "worlds" / "docs"
    docs.mkdir(parents=True)
    (docs / "ada.md").write_text("Ada lives in Oslo.")
    (docs.parent / "superseded.txt").write_text("bo.md")
    made = jobs(tmp_path)["midtrain"]
    begun = pinned(ws, made.model_copy(update={"docs": str(docs)}))
    project = tmp_path / "moved"
    project.mkdir()
    for folder in ["home"] if held else ["home", "worlds"]:
        (tmp_path / folder).rename(project / folder)
    ws.home = project / "home"
    found, there = pinned(ws, begun), project / docs.relative_to(tmp_path)
    assert isinstance(found, MidtrainJob) and found.docs == str(there)
    assert found.inputs == begun.inputs
    assert pinned(ws, begun, texts_kept=True) == begun  # which reads them no more
    (there / "ada.md").write_text("Ada lives in Rome.")
    with pytest.raises(InputError, match=r"worlds/superseded.txt was there when the run began: restore it"):
        pinned(ws, begun)


@pytest.mark.parametrize("named", ["retold", "retold/augmented.jsonl"])
def test_retold_documents_and_a_reward_are_read_where_the_project_was_moved_to(
    ws: Workspace, tmp_path: Path, named: str
) -> None:
    """The folder of the one, and the function in the file of the other, are no file with that hash."""
    project = tmp_path / "project"
    (project / "retold").mkdir(parents=True)
    (project / "retold" / "augmented.jsonl").write_text('{"text": "Ada lives in Oslo."}')
    made = jobs(project)
    ws.home = ws.home.rename(project / "home")
    trained = pinned(ws, made["midtrain"].model_copy(update={"augment": str(project / named)}))
    recovered = pinned(ws, made["distill"])
    moved = project.rename(tmp_path / "moved")
    ws.home = moved / "home"
    training, recovery = pinned(ws, trained), pinned(ws, recovered)
    assert isinstance(training, MidtrainJob) and isinstance(recovery, DistillJob)
    assert (training.augment, training.inputs) == (str(moved / named), trained.inputs)
    assert (recovery.settings.reward, recovery.inputs) == (f"{moved}/judge.py:judge", recovered.inputs)
    (moved / "retold" / "augmented.jsonl").write_text("{}")
    (moved / "judge.py").write_text("as it is now")
    assert pinned(ws, trained).sources()["augmented"] == str(project / named)
    assert pinned(ws, recovered).sources()["reward"] == str(project / "judge.py")


@pytest.mark.parametrize("kind", ["midtrain", "distill"])
def test_no_training_goes_on_without_the_questions_that_it_has_still_to_keep_out(
    ws: Workspace, tmp_path: Path, kind: str
) -> None:
    begun = pinned(ws, jobs(tmp_path)[kind])
    assert isinstance(begun, MidtrainJob | DistillJob)
    (tmp_path / "ifeval.jsonl").unlink()
    first: Any = SimpleNamespace(once=lambda name, make: make(), say=lambda line: None)
    with pytest.raises(InputError, match=r"IFEval prompts .*ifeval.jsonl.*: gone since the run began"):
        kept_evaluation_prompts(begun, first)
    later: Any = SimpleNamespace(once=lambda name, make: ["as it was"])
    assert kept_evaluation_prompts(begun, later) == ["as it was"]


def test_a_context_whose_file_is_gone_is_not_taken_for_a_text(ws: Workspace, tmp_path: Path) -> None:
    """Its name was shown to the teacher."""
    rules = tmp_path / "house rules"
    rules.write_text("Be brief.")
    made = jobs(tmp_path)["distill"]
    assert isinstance(made, DistillJob)
    settings = override(PRESET.distill, {"method": "opcd", "context": str(rules)})
    begun = pinned(ws, made.model_copy(update={"settings": settings}))
    assert read_context(begun, get("opcd"), []) is not None
    rules.unlink()
    with pytest.raises(InputError, match=r"context .*house rules.*: gone since the run began"):
        read_context(pinned(ws, begun), get("opcd"), [])


def test_a_stage_trains_on_what_its_cycle_began_with(ws: Workspace, tmp_path: Path) -> None:
    made = jobs(tmp_path)
    begun = pinned(ws, made["cycle"])
    (tmp_path / "judge.py").write_text("as it is now")
    with pytest.raises(InputError, match=r"reward .*changed since the run began"):
        pinned(ws, inherited(made["distill"], begun))


@pytest.mark.parametrize("reward", ["exact", "judges:exact"])
def test_a_reward_that_is_no_file_is_in_the_job_itself(tmp_path: Path, reward: str) -> None:
    made = jobs(tmp_path)["distill"]
    assert isinstance(made, DistillJob)
    other = made.model_copy(update={"settings": override(made.settings, {"reward": reward})})
    assert "reward" not in other.sources()


def test_files_that_are_not_read_may_come_and_go(ws: Workspace, tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "page.md").write_text("Words.")
    begun = pinned(ws, jobs(tmp_path)["cycle"])
    (docs / "picture.png").write_bytes(b"\x89PNG")
    assert pinned(ws, begun) == begun
    (docs / "macros.sty").write_text(r"\newcommand{\name}{value}")  # read by the chapters beside it
    with pytest.raises(InputError, match=r"documents .*changed since the run began"):
        pinned(ws, begun)


def test_documents_that_are_left_out_may_change(ws: Workspace, tmp_path: Path) -> None:
    made = jobs(tmp_path)["cycle"]
    assert isinstance(made, CycleJob)
    settings = changed(made.settings, {"midtrain.reading.leave_out": ["built"]})
    built = tmp_path / "docs" / "built" / "page.md"
    built.parent.mkdir(parents=True)
    built.write_text("as it was")
    all_of_it, without = pinned(ws, made), pinned(ws, made.model_copy(update={"settings": settings}))
    built.write_text("as it is now")
    assert pinned(ws, without) == without
    with pytest.raises(InputError, match=r"documents .*changed since the run began"):
        pinned(ws, all_of_it)


def test_what_recover_yaml_leaves_out_is_named_where_it_may_have_changed(
    ws: Workspace, tmp_path: Path
) -> None:
    """Of a job without settings of its own for that: no document had changed."""
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "page.md").write_text("Words.")
    made = jobs(tmp_path)
    begun = pinned(ws, made["distill"].model_copy(update={"docs": str(docs)}))
    cycle = pinned(ws, made["cycle"])
    ws.config = changed(ws.config, {"midtrain.reading.leave_out": ["page.md"]})
    named = rf"documents \({docs}, or midtrain.reading.leave_out in recover.yaml\): changed since"
    with pytest.raises(InputError, match=named):
        pinned(ws, begun)
    assert pinned(ws, cycle) == cycle
    (docs / "page.md").write_text("Other words.")
    with pytest.raises(InputError, match=rf"documents \({docs}\): changed since the run began"):
        pinned(ws, cycle)


def test_of_augmented_texts_the_written_ones_are_pinned_and_not_the_cache_of_their_writer(
    ws: Workspace, tmp_path: Path
) -> None:
    (tmp_path / "augmented.jsonl").write_text("as it was")
    made = jobs(tmp_path)["cycle"].model_copy(update={"augment": str(tmp_path)})
    begun = pinned(ws, made)
    (tmp_path / "written.jsonl").write_text("more was asked for")
    assert pinned(ws, begun) == begun
    (tmp_path / "augmented.jsonl").write_text("as it is now")
    with pytest.raises(InputError, match=r"augmented .*changed since the run began"):
        pinned(ws, begun)


def test_a_name_is_no_file_that_happens_to_lie_in_the_folder(
    ws: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = jobs(tmp_path)["distill"].model_copy(update={"prompts": "microworld"})
    begun = pinned(ws, made)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "microworld").write_text("notes")
    assert pinned(ws, begun) == begun


class Later(ModelConfig):
    """The model section of a later version, which has one setting more."""

    later: int = 0


def test_a_setting_that_a_later_version_adds_stops_no_run(ws: Workspace, tmp_path: Path) -> None:
    model = ws.config.model
    begun = pinned(ws, jobs(tmp_path)["midtrain"])
    later = Later.model_validate(model.model_dump())
    ws.config = ws.config.model_copy(update={"model": later})
    assert pinned(ws, begun) == begun
    ws.config = ws.config.model_copy(update={"model": later.model_copy(update={"later": 1})})
    with pytest.raises(InputError, match="model section of recover"):
        pinned(ws, begun)


def with_model(ws: Workspace, **settings: Any) -> None:
    """Edit the model section of recover.yaml."""
    ws.config = ws.config.model_copy(update={"model": ws.config.model.model_copy(update=settings)})


def test_a_run_goes_on_after_its_model_was_moved(ws: Workspace, tmp_path: Path) -> None:
    """`recover init` registers it again at model.path, if it is the same."""
    begun = pinned(ws, jobs(tmp_path)["midtrain"])
    with_model(ws, path=str(tmp_path / "moved"))
    assert pinned(ws, begun) == begun
    for change in ({"dtype": "bfloat16"}, {"dtype": "auto", "path": "someone/model"}):  # of the hub
        with_model(ws, **change)
        with pytest.raises(InputError, match="model section of recover"):
            pinned(ws, begun)
