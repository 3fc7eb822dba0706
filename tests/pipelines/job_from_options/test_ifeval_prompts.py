"""IFEval's prompts: from a file, from the hub, or generated once where the hub cannot be reached."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi

from evals import ifeval, jsonl
from evals.families.family import fingerprint
from evals.statistics import items_to_pass
from pipelines.config.ifeval_file import HUB_IFEVAL
from pipelines.config.overrides import changed
from pipelines.config.sections.eval import EvalConfig
from pipelines.config.settings import Config
from pipelines.job_from_options.cycle import cycle_job
from pipelines.job_from_options.ifeval_prompts import FURTHER_SEED, SEED, with_ifeval
from pipelines.job_from_options.measure import eval_job
from pipelines.job_from_options.train import distill_job, midtrain_job
from pipelines.runs.workspace import Workspace
from pipelines.writing import instruction_prompts
from recovery.errors import InputError
from tests.support.self_written import writes_questions
from tests.support.small_cycles import ONLY_NEW, lines, make_docs

pytestmark = pytest.mark.new_home


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> None:
    read = ifeval.rows

    def rows(path: Path | None = None) -> list[dict[str, Any]]:
        if path is None:
            raise InputError(f"{HUB_IFEVAL}: cannot be loaded from the hub")
        return read(path)

    monkeypatch.setattr(ifeval, "rows", rows)


def ask_the_hub(ws: Workspace) -> None:
    config = ws.home / "recover.yaml"
    text = config.read_text(encoding="utf-8")
    config.write_text(text.replace("ifeval: microworld", f"ifeval: {HUB_IFEVAL}"), encoding="utf-8")
    vars(ws).pop("config", None)


def asking_the_hub(ws: Workspace) -> Config:
    return changed(ws.config, {"eval.ifeval": HUB_IFEVAL})


@pytest.mark.usefixtures("away")
def test_without_a_hub_as_many_prompts_as_a_verdict_needs_are_generated_once(
    ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(ws.progress, "say", said.append)
    found = with_ifeval(ws, asking_the_hub(ws), {}).eval
    path = Path(found.ifeval)
    rows = jsonl.read(path, {"prompt": str, "instruction_id_list": list})
    assert len(rows) == len({row["prompt"] for row in rows}) == items_to_pass(EvalConfig().margin)
    assert f"hub: {len(rows)} generated prompts" in said[0] and said[0].endswith(str(path))
    written = path.stat().st_mtime_ns
    assert with_ifeval(ws, asking_the_hub(ws), {}).eval == found
    assert path.stat().st_mtime_ns == written


@pytest.mark.usefixtures("away")
def test_a_home_that_has_its_prompts_keeps_them(ws: Workspace) -> None:
    """Also those of an earlier version: scores of other prompts are not compared."""
    row = {"key": 1, "prompt": "Hi.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
    (ws.home / "prompts").mkdir()
    path = lines(ws.home / "prompts" / "ifeval-725.jsonl", [row])
    assert Path(with_ifeval(ws, asking_the_hub(ws), {}).eval.ifeval).samefile(path)
    assert ifeval.prompts(path) == ["Hi."]


def test_the_command_s_prompts_are_none_by_which_a_home_without_a_hub_is_evaluated() -> None:
    written, asked, further = (
        {fingerprint(prompt.text) for prompt in instruction_prompts.generate(250, seed)}
        for seed in (0, SEED, FURTHER_SEED)
    )
    assert not written & asked and not asked & further and not further & written


@pytest.mark.usefixtures("away")
def test_the_hub_s_prompts_are_not_replaced_where_they_were_typed(ws: Workspace) -> None:
    with pytest.raises(InputError, match="cannot be loaded from the hub"):
        with_ifeval(ws, asking_the_hub(ws), {"eval.ifeval": HUB_IFEVAL})


def test_prompts_in_reach_stay(ws: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ifeval, "rows", lambda path=None: [])
    settings = asking_the_hub(ws)
    assert with_ifeval(ws, settings, {}) == settings


def test_a_file_that_the_evaluation_would_refuse_is_refused(ws: Workspace, tmp_path: Path) -> None:
    path = tmp_path / "ifeval.jsonl"
    path.write_text('{"prompt": "Hi."}\n', encoding="utf-8")
    with pytest.raises(InputError, match="instruction_id_list"):
        with_ifeval(ws, changed(ws.config, {"eval.ifeval": str(path)}), {})


@pytest.mark.usefixtures("away")
def test_a_cycle_and_an_evaluation_after_it_ask_the_same_generated_prompts(
    ws: Workspace, tmp_path: Path
) -> None:
    docs = make_docs(tmp_path)
    (docs.parent / "ifeval.jsonl").unlink()
    ask_the_hub(ws)
    job = cycle_job(ws, docs)
    assert Path(job.settings.eval.ifeval).name == "ifeval-725.jsonl"
    assert eval_job(ws, "base").settings.ifeval == job.settings.eval.ifeval


@pytest.mark.usefixtures("away")
def test_trainings_by_themselves_leave_out_what_an_evaluation_will_generate(
    ws: Workspace, tmp_path: Path
) -> None:
    docs = make_docs(tmp_path)
    (docs.parent / "ifeval.jsonl").unlink()
    ask_the_hub(ws)
    job = midtrain_job(ws, docs, changes={"midtrain.mix": ONLY_NEW})
    assert job.evaluation is not None
    asked = jsonl.read(job.evaluation.ifeval, {"prompt": str})
    assert len(asked) == 725 and job.evaluation.ifeval == eval_job(ws, "base").settings.ifeval
    prompts = lines(tmp_path / "prompts.jsonl", [{"prompt": asked[0]["prompt"]}])
    with pytest.raises(InputError, match="every one of the prompts is an evaluation prompt"):
        distill_job(ws, student="base", changes={"distill.prompts": str(prompts)})


@pytest.mark.slow
def test_a_cycle_without_a_hub_asks_it_once_and_says_what_is_used_instead(
    ws: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs = make_docs(tmp_path)
    for name in ("ifeval.jsonl", "prompts.jsonl"):
        (docs.parent / name).unlink()
    ask_the_hub(ws)
    config = ws.config
    hub = config.distill.model_copy(update={"prompts": "hub:owner/chats:train:messages"})
    monkeypatch.setattr(ws, "config", config.model_copy(update={"distill": hub}))
    asked: list[str] = []
    said: list[str] = []

    def silent(_: HfApi, name: str, **__: Any) -> None:
        asked.append(name)
        raise OSError("no route to host")

    monkeypatch.setattr(HfApi, "repo_info", silent)
    monkeypatch.setattr(ws.progress, "say", said.append)
    writes_questions(monkeypatch)
    cycle_job(ws, docs)
    assert asked == [HUB_IFEVAL]
    named = [line for line in said if HUB_IFEVAL in line or "hub:owner/chats" in line]
    assert [line.split()[0] for line in named] == ["ifeval", "prompts"]
    assert "725 generated prompts" in named[0] and "the clean model writes its own" in named[1]
