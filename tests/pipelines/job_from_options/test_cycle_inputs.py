"""What a cycle refuses, or warns of, before its first stage."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from db.errors import NotFound
from db.reads import queries
from evals.probes import load_probes
from pipelines.config import overrides
from pipelines.config.sections.midtrain import Mix
from pipelines.cycle import cycle
from pipelines.job_from_options.cycle import cycle_job
from pipelines.job_from_options.pilot import pilot_job
from pipelines.job_from_options.train import distill_job, midtrain_job
from pipelines.machine.init_home import initialise
from pipelines.runs.workspace import Workspace
from pipelines.writing.commands import GAPS, AugmentOptions, ProbeOptions, augment_documents, make_probes
from recovery.errors import InputError
from tests.attacks.load import free_port
from tests.support import tiny
from tests.support.small_cycles import ASKED, ONLY_NEW, PLAIN, PROMPTS, WITH_CHAT, lines, settle, turned


def test_probes_that_cannot_be_read_are_refused_before_documents_are(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = lines(docs.parent / "broken.jsonl", [{"id": "a"}])
    monkeypatch.setattr("pipelines.corpus.documents.read_folder", None)
    changes = {"eval.probes": str(broken)}
    for build in (midtrain_job, partial(pilot_job, budget=3)):
        with pytest.raises(InputError, match=r"broken\.jsonl"):
            build(ws, docs, changes=changes)
    with pytest.raises(InputError, match=r"broken\.jsonl"):
        distill_job(ws, student="base", changes=changes)
    with pytest.raises(InputError, match=r"broken\.jsonl"):
        augment_documents(ws, docs, docs.parent / "aug", AugmentOptions(writer=GAPS, probes=broken))


def test_an_engine_that_could_not_answer_in_several_processes_is_refused_before_training(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recorded scores of the clean model asked it nothing, so that it was refused after midtraining."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="several processes: sampler vllm runs inside one process"):
        cycle_job(ws, docs, changes={"eval.sampler": "vllm"})


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("probes.jsonl", "eval.probes"),
        ("ifeval.jsonl", "eval.ifeval"),
        ("ifeval.jsonl", "eval.further_prompts"),
        ("prompts.jsonl", "distill.prompts"),
    ],
)
def test_questions_that_would_be_trained_on_are_refused(
    ws: Workspace, docs: Path, name: str, setting: str
) -> None:
    inside = docs / "asked" / name
    inside.parent.mkdir()
    (docs.parent / name).rename(inside)
    for build in (cycle_job, midtrain_job):
        with pytest.raises(InputError, match=f"{setting}: .*{name} lies in the folder of documents"):
            build(ws, docs, changes={setting: str(inside)})


@pytest.mark.parametrize("place", ["probes.jsonl", ".hidden/probes.jsonl", "../world/probes.jsonl"])
def test_questions_that_are_no_documents_may_lie_there(ws: Workspace, docs: Path, place: str) -> None:
    inside = docs / place
    inside.parent.mkdir(exist_ok=True)
    (docs.parent / "probes.jsonl").rename(inside)
    assert cycle_job(ws, docs, changes={"eval.probes": str(inside)}).settings.eval.probes == str(inside)


def test_probes_are_not_written_among_the_documents(ws: Workspace, docs: Path) -> None:
    refused = (("mine.jsonl", None, "mine"), ("probes.jsonl", "base", r"probes\.written"))
    for name, writer, said in refused:
        with pytest.raises(InputError, match=rf"--out: .*{said}\.jsonl lies in the folder of documents"):
            make_probes(ws, docs, docs / name, ProbeOptions(writer=writer))
    assert [path.name for path in docs.iterdir()] == ["ada.md"]


def test_questions_of_ones_own_are_not_taken_from_among_the_documents(ws: Workspace, docs: Path) -> None:
    """They would be trained on with their answers; qa.jsonl at the top is no document."""
    out, own = docs.parent / "mine.jsonl", {"question": "Where does Ada live?", "answer": "Oslo"}
    document, at_the_top = lines(docs / "questions.jsonl", [own]), lines(docs / "qa.jsonl", [own])
    with pytest.raises(InputError, match=r"--qa: .*questions\.jsonl lies in the folder of documents"):
        make_probes(ws, docs, out, ProbeOptions(qa=document))
    assert not out.exists()
    assert make_probes(ws, docs, out, ProbeOptions(qa=at_the_top))["by_kind"] == {"direct": 1}


def test_questions_are_not_written_where_no_cycle_looks_and_such_a_file_is_named(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = docs.parent / "probes.jsonl"
    inside = docs / place.name
    with pytest.raises(InputError, match=f"no cycle looks for questions: .*: --out {place}$"):
        make_probes(ws, docs, inside, ProbeOptions())
    place.rename(inside)
    said: list[str] = []
    monkeypatch.setattr(ws.progress, "say", said.append)
    cycle_job(ws, docs)
    assert any(f"{inside} lies in the folder, not used: move it beside, or --probes" in one for one in said)
    said.clear()
    cycle_job(ws, docs, changes={"eval.probes": str(inside)})
    assert not any("not used" in one for one in said)


def test_probes_are_drawn_by_the_seed_of_the_home_unless_one_is_given(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = list[int]()

    def noted(texts: Any, count: int, seed: int) -> None:
        drawn.append(seed)
        raise InputError("drawn")

    monkeypatch.setattr("pipelines.writing.probes.from_gaps", noted)
    ws.config = overrides.changed(ws.config, {"seed": 7})
    for given in (None, 0):
        with pytest.raises(InputError, match=r"^drawn$"):
            make_probes(ws, docs, docs.parent / "mine.jsonl", ProbeOptions(seed=given))
    assert drawn == [7, 0]


@pytest.mark.parametrize(("home", "refused"), [("kb/run", True), ("kb/.run", False), ("run", False)])
def test_a_home_whose_files_would_be_documents_is_refused(tmp_path: Path, home: str, refused: bool) -> None:
    kb = tmp_path / "kb"
    kb.mkdir()
    with Workspace.open(tmp_path / home) as ws:
        initialise(ws, model=str(tiny.save(tmp_path / "model")), preset="microworld")
        (kb / "page.md").write_text("Ada Horn lives in Oslo. " * 5)
        options = AugmentOptions(writer=GAPS)
        asks = [
            lambda: midtrain_job(ws, kb, changes={"midtrain.mix": ONLY_NEW}),
            lambda: make_probes(ws, kb, tmp_path / "probes.jsonl", ProbeOptions()),
            lambda: augment_documents(ws, kb, tmp_path / "augmented", options),
        ]
        for ask in asks if refused else asks[:1]:
            with pytest.raises(InputError, match="its files would be read") if refused else nullcontext():
                ask()


def test_what_retells_the_documents_is_not_written_among_them(ws: Workspace, docs: Path) -> None:
    with pytest.raises(InputError, match=r"--out: .*augmented\.jsonl lies in the folder of documents"):
        augment_documents(ws, docs, docs / "retold", AugmentOptions(writer=GAPS))
    assert [path.name for path in docs.iterdir()] == ["ada.md"]


STOP_SOON: dict[str, Any] = {"every": 1}
NOWHERE = f"http://127.0.0.1:{free_port()}"
TWO_TURNS = {"messages": [{"role": "user", "content": "One."}, {"role": "user", "content": "Two?"}]}


@pytest.fixture
def strict(tmp_path: Path) -> Iterator[Workspace]:
    """A home whose model's chat template takes one turn only."""
    template = tiny.save(tmp_path / "strict") / "chat_template.jinja"
    rejecting = "{% if messages|length > 1 %}{{ raise_exception('one turn only') }}{% endif %}"
    template.write_text(rejecting + template.read_text())
    with Workspace.open(tmp_path / "home") as ws:
        initialise(ws, model=str(template.parent), preset="microworld")
        settle(ws, margin=0.4, learning_rate=1e-12)
        yield ws


def test_prompts_that_the_template_rejects_are_refused(strict: Workspace, docs: Path) -> None:
    plain = [{"prompt": f"Say {number}."} for number in range(9)]
    lines(docs.parent / "prompts.jsonl", [*plain, TWO_TURNS])
    with pytest.raises(InputError, match=r"prompts: 'One.*one turn only.*: change or drop such rows"):
        cycle_job(strict, docs)
    assert queries.runs(strict.tracker.db) == []


def test_pairs_and_questions_that_the_template_rejects_are_refused(strict: Workspace, docs: Path) -> None:
    pairs = lines(docs.parent / "pairs.jsonl", [TWO_TURNS | {"response": "Three."}])
    with pytest.raises(InputError, match=r"pairs: 'One.*one turn only"):
        cycle_job(strict, docs, changes={"distill.method": "sft", "distill.pairs": str(pairs)})
    probes = docs.parent / "probes.jsonl"
    lines(
        probes, [{"id": "one", "prompt": "Who?", "answer": "Ada"}, TWO_TURNS | {"id": "two", "answer": "B"}]
    )
    with pytest.raises(InputError, match=r"suite knowledge: .*One.*one turn only"):
        cycle_job(strict, docs)


def test_prompts_of_which_none_leaves_room_are_refused(ws: Workspace, docs: Path) -> None:
    long = [{"prompt": f"Say {number} " + "and again " * 300} for number in range(3)]
    lines(docs.parent / "prompts.jsonl", long)
    with pytest.raises(InputError, match="all prompts leave no room for an answer: the limit is 2,048"):
        cycle_job(ws, docs)
    lines(docs.parent / "prompts.jsonl", [*long, {"prompt": "Say one word."}])
    cycle_job(ws, docs)


@pytest.mark.parametrize(("margin", "warned"), [(0.03, True), (0.4, False)])
def test_too_few_questions_are_said_before_the_first_stage(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch, margin: float, warned: bool
) -> None:
    said: list[str] = []
    monkeypatch.setattr(ws.progress, "say", said.append)

    def stop(*_: Any) -> None:
        raise InputError("the first stage")

    monkeypatch.setattr("pipelines.cycle._evaluate", stop)
    asked = cycle_job(ws, docs, changes={"eval.margin": margin})
    with pytest.raises(InputError, match="the first stage"):
        cycle(ws, asked, key=ws.new_key())
    few = [line for line in said if "36 independent questions" in line]
    assert [line.split()[1] for line in few] == (["behaviour:", "knowledge:"] if warned else [])
    assert json.dumps(few).count("725") == len(few)


def test_questions_beside_the_documents_are_named(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(ws.progress, "say", said.append)
    cycle_job(ws, docs)
    beside = [line for line in said if line.endswith("beside the documents")]
    assert [line.split()[0] for line in beside] == ["probes", "ifeval"]
    said.clear()
    cycle_job(ws, docs, changes={"eval.probes": str(docs.parent / "probes.jsonl")})
    assert [line.split()[0] for line in said if line.endswith("beside the documents")] == ["ifeval"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"suites": "ifeval,mmlu"}, "a cycle is judged by ifeval, knowledge, retention"),
        ({"suites": "knowledge,retention"}, "no cycle is accepted without behaviour.*--suite ifeval,know"),
        ({"suites": "json"}, "no cycle is accepted without behaviour"),
        ({"changes": {"distill.method": "sft"}}, "no row has a 'response'"),
        (
            {"changes": PLAIN | {"distill.prompts": "typo.jsonl"}, "recover_with": "auto"},
            "typo.jsonl: prompts",
        ),
        ({"changes": PLAIN | {"distill.dials": {"sgnal": "jsd"}}, "recover_with": "auto"}, "sgnal"),
        ({"changes": {"distill.method": "opcd", "distill.context": "gone.txt"}}, "there is no such file"),
        ({"changes": {"distill.stop": STOP_SOON, "distill.steps": 2}}, "no row has an 'instruction_id_list'"),
        ({"changes": {"distill.method": "rl"}}, r"needs a reward: set distill\.reward"),
        ({"recover_with": "opd-reward"}, "needs a reward"),
        ({"changes": {"distill.method": "opcd"}}, "context system: nothing to show"),
        ({"changes": {"distill.prompts": "hub:a/b:train:text"}}, "the data set cannot be loaded"),
        ({"changes": {"midtrain.dials": {"signal": "jsd"}}}, "belongs to midtrain.method: passage"),
        (
            {"changes": {"midtrain.method": "passage", "midtrain.dials": {"teacher": "self"}}},
            "the clean model teaches and sees the passage",
        ),
        ({"changes": {"model.quantize": "nf4"}}, r"midtrain\.lora: weights in 4 bits"),
        ({"changes": {"eval.ifeval": "microworld"}}, "IFEval prompts of its own"),
        ({"changes": {"eval.probes": "gone.jsonl"}}, "gone.jsonl: cannot be read"),
    ],
)
def test_what_a_later_stage_needs_is_refused_before_the_first(
    ws: Workspace, docs: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        cycle_job(ws, docs, **options)
    assert [run for run in queries.runs(ws.tracker.db) if run["kind"] == "cycle"] == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"distill.stop": STOP_SOON | {"probe": "gone.jsonl"}, "distill.steps": 2}, "gone.jsonl"),
        ({"distill.stop": STOP_SOON, "distill.steps": 2}, "no row has an 'instruction_id_list'"),
        ({"distill.pairs": "gone.jsonl", "distill.method": "sdft"}, "gone.jsonl"),
        ({"distill.method": "rl"}, "needs a reward"),
        ({"distill.method": "opcd"}, "context system: nothing to show"),
    ],
)
def test_inputs_beside_prompts_of_the_hub_are_read_before_the_first_stage(
    ws: Workspace, docs: Path, changes: dict[str, Any], said: str
) -> None:
    kept = ws.home / "prompts" / "a--b@0123-train-text-seed0.jsonl"
    kept.parent.mkdir()
    (docs.parent / "prompts.jsonl").rename(kept)
    hub = {"distill.prompts": "hub:a/b:train:text"}
    cycle_job(ws, docs, changes=hub)
    with pytest.raises(InputError, match=said):
        cycle_job(ws, docs, changes=hub | changes)


def test_prompts_that_are_all_about_the_documents_are_refused_before_the_first_stage(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (docs / "ada.md").write_text("Ada Horn lives in Oslo. Ada Horn mends clocks. " * 3)
    lines(docs.parent / "prompts.jsonl", [{"prompt": "Where does Ada Horn live?"}])
    with_chat = {"midtrain.mix": WITH_CHAT}
    for build in (cycle_job, midtrain_job):
        with pytest.raises(InputError, match="every prompt mentions what the documents are about"):
            build(ws, docs, changes=with_chat)
    monkeypatch.setattr("pipelines.job_from_options.document_checks.SMALL", 10)
    assert cycle_job(ws, docs, changes=with_chat)  # of a large folder, midtraining tells
    lines(docs.parent / "prompts.jsonl", [{"prompt": "Where does Ada Horn live?"}, {"prompt": "Say hello."}])
    monkeypatch.undo()
    assert cycle_job(ws, docs, changes=with_chat)


def test_prompts_of_which_the_evaluation_asks_every_one_are_refused_before_the_first_stage(
    ws: Workspace, docs: Path
) -> None:
    asked = {"distill.prompts": str(docs.parent / "ifeval.jsonl")}
    with_chat = {**asked, "midtrain.mix": WITH_CHAT}
    for build in (
        lambda: cycle_job(ws, docs, changes=asked),
        lambda: cycle_job(ws, docs, recover_with="merge", changes=with_chat),
        lambda: midtrain_job(ws, docs, changes=with_chat),
    ):
        with pytest.raises(InputError, match="every one of the prompts is an evaluation prompt"):
            build()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"distill.stop": STOP_SOON | {"probe": "gone.jsonl"}, "distill.steps": 2}, "gone.jsonl"),
        ({"distill.pairs": "gone.jsonl", "distill.method": "sdft"}, "gone.jsonl"),
        ({"distill.method": "rl", "distill.reward": "gone.py:judge"}, "gone"),
        ({"distill.method": "opcd", "distill.context": "gone.txt"}, "there is no such file"),
        ({"distill.method": "opd", "distill.ahead": 1}, "ahead"),
        ({"distill.sampler": NOWHERE}, "no vLLM server answers there"),
        ({"eval.sampler": NOWHERE}, "no vLLM server answers there"),
        ({"midtrain.dials": {"signal": "jsd"}}, "belongs to midtrain.method: passage"),
        ({"distill.stop": STOP_SOON | {"probe": "few.jsonl"}, "distill.steps": 2}, "20 prompts in few.jsonl"),
        (
            {"distill.stop": STOP_SOON | {"probe": "ifeval.jsonl"}, "distill.steps": 2},
            "ifeval.jsonl: no row has an 'instruction_id_list' to check answers by",
        ),
        ({"distill.pairs": "prompts.jsonl", "distill.method": "sdft"}, "no row has a 'response'"),
        (
            {"distill.pairs": "asked.jsonl", "distill.method": "sdft"},
            "every one of the pairs is an evaluation prompt",
        ),
        ({"distill.pairs": "long.jsonl", "distill.method": "sdft"}, "all pairs leave no room for an answer"),
    ],
)
def test_what_needs_no_prompts_is_refused_before_a_model_writes_them(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], said: str
) -> None:
    monkeypatch.chdir(docs.parent)
    lines(Path("few.jsonl"), [{"prompt": f"Say {number} nice words.", **ASKED} for number in range(20)])
    lines(Path("asked.jsonl"), [{"prompt": f"Line {n}.", "response": "So."} for n in range(PROMPTS)])
    lines(Path("long.jsonl"), [{"prompt": "Say so " + "and again " * 300, "response": "So."}])

    def written(*_: Any, **__: Any) -> str:
        raise AssertionError("prompts were written")

    monkeypatch.setattr("pipelines.job_from_options.cycle.recovery_prompts", written)
    with pytest.raises(InputError, match=said):
        cycle_job(ws, docs, changes=changes)


def test_mixtures_alone_need_no_input_of_a_distillation(ws: Workspace, docs: Path) -> None:
    (docs.parent / "prompts.jsonl").unlink()
    ws.config = overrides.changed(ws.config, {"distill.prompts": "typo.jsonl"})
    unread = {"distill.routes": {"code": "gone"}}
    assert cycle_job(ws, docs, recover_with="merge", changes=unread).recover_with == "merge"


def test_prompts_are_refused_where_nothing_would_read_them(ws: Workspace, docs: Path) -> None:
    """As of a mistyped file, which was not even looked for."""
    typed = {"distill.prompts": "typo.jsonl"}
    builds = (midtrain_job, partial(cycle_job, recover_with="merge"))
    for build in builds:
        with pytest.raises(
            InputError, match=r"--prompts has no effect (in a|with --recover-with merge and a) mid"
        ):
            build(ws, docs, changes=typed)
        with pytest.raises(InputError, match=r"typo\.jsonl: prompts cannot be read"):
            build(ws, docs, changes={**typed, "midtrain.mix": WITH_CHAT})


def test_a_method_is_named_once_and_beside_auto_is_the_one_that_is_tried_last(
    ws: Workspace, docs: Path
) -> None:
    typed = {"distill.method": "opd-sampled"}
    job = cycle_job(ws, docs, recover_with="auto", changes=typed)
    assert (job.recover_with, job.settings.distill.method) == ("auto", "opd-sampled")
    for choice, said in (
        ("opd", "say the same thing"),
        ("merge", "--method has no effect with --recover-with"),
    ):
        with pytest.raises(InputError, match=said):
            cycle_job(ws, docs, recover_with=choice, changes=typed)


def test_a_student_that_cannot_be_merged_is_refused_where_nothing_else_is_tried(
    ws: Workspace, docs: Path, tmp_path: Path
) -> None:
    wide = str(tiny.save(tmp_path / "wide", intermediate_size=96))
    with pytest.raises(InputError, match=r"different tensors, as model\.layers\.0\.mlp\.down_proj\.weight"):
        cycle_job(ws, docs, student=wide, recover_with="merge")
    assert queries.runs(ws.tracker.db) == []
    job = cycle_job(ws, docs, student=wide, recover_with="auto", changes=PLAIN)
    assert job.unmergeable and "different tensors" in job.unmergeable
    assert cycle_job(ws, docs, recover_with="auto").unmergeable is None


@pytest.mark.parametrize("lora", [None, {"rank": 2}])
def test_a_model_that_training_saves_under_other_names_is_refused_where_nothing_else_is_tried(
    docs: Path, tmp_path: Path, lora: dict[str, int] | None
) -> None:
    changes = {"midtrain.lora": lora}
    with Workspace.open(tmp_path / "home") as ws:
        model = tiny.unprefixed(tiny.save(tmp_path / "model"))
        initialise(ws, model=str(model), preset="microworld")
        settle(ws, margin=0.4, learning_rate=1e-12)
        with pytest.raises(InputError, match=r"once trained, .* saved with model\.embed_tokens\.weight"):
            cycle_job(ws, docs, recover_with="merge", changes=changes)
        assert queries.runs(ws.tracker.db) == []
        assert cycle_job(ws, docs, recover_with="auto", changes=changes).unmergeable
        assert cycle_job(ws, docs, changes=changes).unmergeable is None


def test_a_cycle_records_the_checkpoints_that_its_routes_named(ws: Workspace, docs: Path) -> None:
    job = cycle_job(ws, docs, recover_with="opd-multi", changes={"distill.routes": {"code": "base"}})
    assert job.settings.distill.routes == {"code": ws.clean().id}
    gone = {"distill.routes": {"code": "gone"}}
    for chosen in ("opd-multi", "auto"):
        with pytest.raises(NotFound, match="'gone' is not recorded"):
            cycle_job(ws, docs, recover_with=chosen, changes=gone)


def test_a_route_without_a_teacher_is_refused(ws: Workspace, docs: Path) -> None:
    lines(docs.parent / "prompts.jsonl", [{"prompt": "Add.", "route": "maths"}, {"prompt": "Say."}])
    with pytest.raises(InputError, match="no teacher for the route 'maths' of a row: there are base, code"):
        cycle_job(ws, docs, recover_with="opd-multi", changes={"distill.routes": {"code": "base"}})
    cycle_job(ws, docs, recover_with="opd-multi", changes={"distill.routes": {"maths": "base"}})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"distill.sampler": NOWHERE}, "no vLLM server answers there"),
        ({"distill.method": "opd-topk", "distill.teacher_engine": NOWHERE}, "no vLLM server answers there"),
        (
            {"distill.method": "opd-topk", "distill.sampler": "vllm", "distill.teacher_engine": "vllm"},
            "sampler and teacher cannot both be in this process",
        ),
    ],
)
def test_engines_that_cannot_work_are_refused(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], said: str
) -> None:
    monkeypatch.setattr("recovery.engines.vllm_local.require_vllm", lambda: None)
    with pytest.raises(InputError, match=said):
        cycle_job(ws, docs, changes=changes)


def test_an_engine_of_a_teacher_has_room_for_an_answer(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ws.home / "recover.yaml"
    path.write_text(path.read_text() + "\nengine: {max_length: 4}\n")
    vars(ws).pop("config", None)
    changes = {"distill.method": "opd-topk", "distill.teacher_engine": NOWHERE}
    described = "recovery.engines.vllm_http.ServerEngine._described"
    monkeypatch.setattr(described, lambda engine, url: ("clean", None))
    with pytest.raises(InputError, match=r"engine\.max_length 4 leaves no room .*answers of 4 tokens"):
        cycle_job(ws, docs, changes=changes)
    pairs = lines(docs.parent / "pairs.jsonl", [{"prompt": "Say.", "response": "Said."}])
    data = {"distill.dials": {"states": "data"}, "distill.pairs": str(pairs)}
    with pytest.raises(InputError, match="all pairs are longer than what is read, 3 tokens"):
        cycle_job(ws, docs, changes=changes | data)
    path.write_text(path.read_text().replace("max_length: 4", "max_length: 40"))
    vars(ws).pop("config", None)
    # Writes no answers: beside 40 new tokens there would be no room for a prompt.
    cycle_job(ws, docs, changes=changes | data | {"distill.max_new_tokens": 40})


def test_a_server_that_teaches_has_room_for_an_answer(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads one token fewer than it says, and a prompt is one at least."""
    changes = {"distill.method": "opd-topk", "distill.teacher_engine": NOWHERE}
    described = "recovery.engines.vllm_http.ServerEngine._described"
    for length in (4, 5):
        monkeypatch.setattr(described, lambda engine, url, length=length: ("clean", length))
        with pytest.raises(InputError, match=f"length of the teacher {length} leaves no room .* 4 tokens"):
            cycle_job(ws, docs, changes=changes)
    monkeypatch.setattr(described, lambda engine, url: ("clean", 6))
    with pytest.raises(InputError, match=r"all prompts leave no room .* of 4 tokens: the teacher reads 5"):
        cycle_job(ws, docs, changes=changes)
    longest = len(tiny.chat_model().prompt_ids([{"role": "user", "content": "Say 0 words."}]))
    monkeypatch.setattr(described, lambda engine, url: ("clean", longest + 5))
    cycle_job(ws, docs, changes=changes)


@pytest.mark.parametrize("setting", ["distill.sampler", "eval.sampler"])
def test_a_folder_for_weights_that_is_not_there_is_refused(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    exchange = docs.parent / "shared"
    path = ws.home / "recover.yaml"
    path.write_text(f"{path.read_text()}\nengine: {{exchange: {exchange}}}\n")
    vars(ws).pop("config", None)
    described = "recovery.engines.vllm_http.ServerEngine._described"
    monkeypatch.setattr(described, lambda engine, url: ("clean", None))
    changes = {setting: NOWHERE}
    with pytest.raises(InputError, match=r"engine\.exchange: .*shared is no folder"):
        cycle_job(ws, docs, changes=changes)
    exchange.mkdir()
    cycle_job(ws, docs, changes=changes)


def test_a_share_of_retold_documents_is_typed_with_such_documents(ws: Workspace, docs: Path) -> None:
    mix = {"midtrain.mix": ONLY_NEW | {"new": 0.5, "augmented": 0.5}}
    for build in (cycle_job, midtrain_job, partial(pilot_job, budget=3)):
        with pytest.raises(InputError, match="augmented has no effect without --augment"):
            build(ws, docs, changes=mix)
    told = lines(docs.parent / "augmented.jsonl", [{"kind": "summary", "text": "so"}])
    assert midtrain_job(ws, docs, augment=told, changes=mix).settings.mix.augmented == 0.5


def test_a_share_of_retold_documents_that_the_home_sets_is_not_proposed(ws: Workspace, docs: Path) -> None:
    path = ws.home / "recover.yaml"
    preset = "mix: {new: 0.4, earlier: 0.3, questions: 0.3}"
    path.write_text(path.read_text().replace(preset, "mix: {new: 0.5, augmented: 0.5}"))
    vars(ws).pop("config", None)
    assert midtrain_job(ws, docs).settings.mix.augmented == 0.5  # the training says where it goes
    assert pilot_job(ws, docs, budget=3).settings.midtrain.mix == Mix(new=1.0)


def test_a_list_of_superseded_documents_that_cannot_be_read_is_refused(ws: Workspace, docs: Path) -> None:
    (docs.parent / "superseded.txt").write_bytes(b"\xff\xfe\n")
    with pytest.raises(InputError, match="the list of superseded documents cannot be read"):
        cycle_job(ws, docs)


def test_a_list_of_superseded_documents_among_the_documents_is_refused(ws: Workspace, docs: Path) -> None:
    (docs / "superseded.txt").write_text("old.md\n")
    said = r"superseded\.txt: the list .* lies among the documents.*: move it beside the folder"
    for build in (cycle_job, midtrain_job, partial(pilot_job, budget=3)):
        with pytest.raises(InputError, match=said):
            build(ws, docs)


def test_a_strict_cycle_reads_every_document_first(ws: Workspace, docs: Path) -> None:
    (docs / "late.md").write_bytes(b"\x00\x01")
    cycle_job(ws, docs)
    with pytest.raises(InputError, match=r"late\.md"):
        cycle_job(ws, docs, changes={"midtrain.reading.strict": True})


def test_turns_of_ifevals_rows_are_tried(strict: Workspace, docs: Path) -> None:
    rows = [{"key": "one", **TWO_TURNS, **ASKED}, {"key": "two", "prompt": "Say.", **ASKED}]
    lines(docs.parent / "ifeval.jsonl", rows)
    with pytest.raises(InputError, match=r"suite ifeval: .*One.*one turn only"):
        cycle_job(strict, docs)


def other_documents(docs: Path, text: str = "Bob lives in Rome. " * 5) -> Path:
    folder = docs.parent / "february"
    folder.mkdir()
    (folder / "bob.md").write_text(text)
    return folder


def give_passages(docs: Path, passage: str) -> None:
    path = docs.parent / "probes.jsonl"
    lines(path, [probe.row() | {"passage": passage} for probe in load_probes(path)])


def test_questions_that_an_earlier_cycle_asked_about_other_documents_are_refused(
    ws: Workspace, docs: Path
) -> None:
    give_passages(docs, "Ada lives in Oslo.")
    turned(ws, docs)
    cycle_job(ws, docs)
    february = other_documents(docs)
    with pytest.raises(
        InputError, match=r"probes\.jsonl asks what cycle 1 asked, .* --docs .*february --out"
    ):
        cycle_job(ws, february)
    cycle_job(ws, february, suites="ifeval,retention")
    (february / "ada.md").write_text("Ada *lives*\nin Oslo. Cy lives in Bonn.")
    cycle_job(ws, february)


def test_an_earlier_cycles_questions_are_known_however_their_file_was_changed(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """January's qa.jsonl, taken for February, became another file, as its facts were known by then."""
    passage = "Ada lives in Oslo."
    give_passages(docs, passage)
    turned(ws, docs)
    path = docs.parent / "probes.jsonl"
    rows = [probe.row() | {"fact_status": "stable"} for probe in load_probes(path)]
    general = {"id": "general", "suite": "retention", "prompt": "Two and two?", "answer": "4"}
    lines(path, [general, *({**row, "prompt": f" {row['prompt'].upper()}"} for row in reversed(rows))])
    cycle_job(ws, docs)
    february = other_documents(docs)
    with pytest.raises(InputError, match=r"probes\.jsonl asks what cycle 1 asked, about other documents"):
        cycle_job(ws, february)
    new = {"suite": "knowledge", "prompt": "Where is Bob?", "answer": "Rome"}
    lines(path, [*rows, {"id": "bob", **new}, {"id": "moved", **new, "prompt": rows[0]["prompt"]}])
    said: list[str] = []
    monkeypatch.setattr(ws.progress, "say", said.append)
    cycle_job(ws, february)
    (line,) = [line for line in said if "about other documents" in line]
    asked = f"{path} asks in {PROMPTS} of {PROMPTS + 2} questions what cycle 1 asked, about other documents"
    assert line == f"  probes       {asked}: look whether its questions are about these too"
    (february / "ada.md").write_text(passage)
    cycle_job(ws, february)
    assert said.count(line) == 1


def test_questions_without_passages_that_were_asked_about_other_documents_are_said(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turned(ws, docs)
    february = other_documents(docs)
    said: list[str] = []
    monkeypatch.setattr(ws.progress, "say", said.append)
    cycle_job(ws, docs)
    assert not any("cycle 1" in line for line in said)
    cycle_job(ws, february)
    assert len([line for line in said if "asks what cycle 1 asked, about other documents" in line]) == 1


def test_what_takes_the_place_of_a_file_that_is_not_beside_the_documents_is_named(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = (docs.parent / "ifeval.jsonl").rename(docs.parent / "other.jsonl")
    probes = docs.parent / "probes.jsonl"
    probes.unlink()
    said: list[str] = []
    monkeypatch.setattr(ws.progress, "say", said.append)
    monkeypatch.setattr(ws, "config", overrides.changed(ws.config, {"eval.ifeval": str(elsewhere)}))
    cycle_job(ws, docs)
    ifeval = f"IFEval: {elsewhere} (looked for {docs.parent / 'ifeval.jsonl'})"
    assert f"  asks         about the documents: nothing (looked for {probes}); {ifeval}" in said
    said.clear()
    cycle_job(ws, docs, suites="ifeval")
    assert [one for one in said if "looked for" in one] == [f"  asks         {ifeval}"]
    said.clear()
    cycle_job(ws, docs, suites="ifeval", changes={"eval.ifeval": str(elsewhere)})
    assert not any("looked for" in one for one in said)
