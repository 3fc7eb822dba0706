"""What a distillation trains on: prompts that can be answered, chosen once for every process and attempt."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines import distill as stages
from pipelines.config.jobs import DistillJob
from pipelines.config.overrides import override
from pipelines.distill import distill
from pipelines.distillation.inputs import PromptData
from pipelines.distillation.pool import chosen_once
from pipelines.engines.engine_places import length_of
from pipelines.prompts.lengths import answerable
from pipelines.prompts.prompt_sources import Prompt
from pipelines.runs.stage_runner import Stage
from pipelines.runs.workspace import Workspace
from recovery.engines import vllm_local, vllm_server
from recovery.engines.engine_sampler import EngineSampler
from recovery.errors import InputError
from recovery.sampling.in_process import InProcessSampler
from tests.support import tiny
from tests.support.engine_fakes import TinyEngine, serving
from tests.support.small_cycles import ASKED, lines
from tests.support.stages import PRESET

pytestmark = pytest.mark.new_home
LONG = "long " * 600  # bytes are the tiny model's tokens, and it reads 2,048


@pytest.fixture
def said(ws: Workspace, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(ws.progress, "say", found.append)
    return found


def job(folder: Path, *texts: str, **settings: Any) -> DistillJob:
    path = lines(folder / "prompts.jsonl", [{"prompt": text} for text in texts])
    small = {"steps": 1, "prompts_per_step": 4, "max_new_tokens": 4, "preflight": False, "rehearsal": 0.0}
    chosen = override(PRESET.distill, small | settings)
    questions = lines(folder / "ifeval.jsonl", [{"key": 1, "prompt": "Name two birds.", **ASKED}])
    evaluation = override(PRESET.eval, {"ifeval": str(questions)})
    return DistillJob(
        student="base", teacher="base", prompts=str(path), settings=chosen, evaluation=evaluation
    )


def test_a_prompt_without_room_for_an_answer_is_left_out(
    ws: Workspace, tmp_path: Path, said: list[str]
) -> None:
    found = distill(ws, job(tmp_path, "Say one word.", LONG, "Say two words."))
    assert found["tokens"] > 0
    line = (
        "  prompts      1 of 3 are left out, as they leave no room for an answer: the limit is 2,048 tokens"
    )
    assert said.count(line) == 1


def test_prompts_of_which_none_leaves_room_are_refused(ws: Workspace, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"all prompts leave no room .* 2,048 tokens; .*'long long"):
        distill(ws, job(tmp_path, LONG, LONG + "again"))


def test_a_prompt_that_the_memory_does_not_hold_is_left_out(
    ws: Workspace, tmp_path: Path, said: list[str]
) -> None:
    """With the answer that may follow: one such prompt would end the training, and the resumed one again."""
    asked = job(tmp_path, "Say one word.", "long " * 100, "Say two words.", longest_row=400)
    assert distill(ws, asked)["tokens"] > 0
    why = "they exceed distill.longest_row, 400, with an answer of 4 tokens"
    assert said.count(f"  prompts      1 of 3 are left out, as {why}") == 1
    with pytest.raises(InputError, match=r"all prompts exceed distill.longest_row, 20, with an answer"):
        distill(ws, job(tmp_path, "Say one word.", longest_row=20))


@pytest.fixture
def short(ws: Workspace, tmp_path: Path) -> str:
    """A teacher that was made for fewer tokens than the student."""
    return str(tiny.save(tmp_path / "short", seed=3, max_position_embeddings=80))


def test_what_a_shorter_teacher_cannot_read_is_left_out(
    ws: Workspace, tmp_path: Path, said: list[str], short: str
) -> None:
    texts = "Say one word.", "Say two words, " * 4
    asked = job(tmp_path, *texts).model_copy(update={"teacher": short})
    assert distill(ws, asked)["tokens"] > 0
    line = (
        "  prompts      1 of 2 are left out, as they leave no room for an answer of 4 tokens: the teacher "
        "reads 80"
    )
    assert said.count(line) == 1
    with pytest.raises(
        InputError, match=r"all prompts leave no room for an answer of 60 tokens: .* reads 80"
    ):
        distill(ws, job(tmp_path, *texts, max_new_tokens=60).model_copy(update={"teacher": short}))


@pytest.mark.parametrize("context", [False, True])
def test_what_would_fill_the_length_of_a_teacher_s_server_is_left_out(
    ws: Workspace, tmp_path: Path, said: list[str], context: bool
) -> None:
    """A server is asked for one token behind the answer that it scores."""
    texts = "Say one word.", "Say three more words."
    seen = {"dials": {"context": "system"}, "context": "Be brief."} if context else {}
    turns = [{"role": "system", "content": "Be brief."}] if context else []
    longest = tiny.chat_model().prompt_ids([*turns, {"role": "user", "content": texts[1]}])
    with serving(TinyEngine(tiny.chat_model())) as server:
        server.length = len(longest) + 4
        settings = {"method": "opd-topk", "teacher_engine": server.url, **seen}
        assert distill(ws, job(tmp_path, *texts, **settings))["tokens"] > 0
        line = (
            "  prompts      1 of 2 are left out, as they leave no room for an answer of 4 tokens: the "
            f"teacher reads {server.length - 1}"
        )
        assert said.count(line) == 1
        server.length += 1
        said.clear()
        assert distill(ws, job(tmp_path, *texts, **settings))["tokens"] > 0
        assert not [line for line in said if "are left out" in line]


@pytest.mark.slow
def test_what_a_teacher_s_own_server_does_not_read_is_left_out(
    ws: Workspace, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM may read less than the config says, as of models with LongRoPE: it says so once it runs."""
    texts = "Say one word.", "Say three more words."
    longest = tiny.chat_model().prompt_ids([{"role": "user", "content": texts[1]}])
    nothing = lambda: None  # noqa: E731
    with serving(TinyEngine(tiny.chat_model())) as server:

        def made(directory: Path, settings: Any, **_: Any) -> Any:
            return SimpleNamespace(url=server.url, key="", settings=settings, start=nothing, stop=nothing)

        monkeypatch.setattr(vllm_local, "require_vllm", nothing)
        monkeypatch.setattr(vllm_server, "Server", made)
        server.length = len(longest) + 4
        own = {"method": "opd-topk", "teacher_engine": "server"}
        assert distill(ws, job(tmp_path, *texts, **own))["tokens"] > 0
        why = f"an answer of 4 tokens: the teacher reads {server.length - 1}"
        assert said.count(f"  prompts      1 of 2 are left out, as they leave no room for {why}") == 1
        with pytest.raises(InputError, match=r"all prompts leave no room for an answer of 60 tokens: the "):
            distill(ws, job(tmp_path, *texts, max_new_tokens=60, **own))


def test_what_the_server_of_a_sampler_does_not_read_is_left_out(
    ws: Workspace, tmp_path: Path, said: list[str]
) -> None:
    """It refuses such a prompt: the training ended at it, and the resumed one again."""
    with serving(TinyEngine(tiny.chat_model())) as server:
        server.length = 64
        asked = job(tmp_path, "Say one word.", "Say two words, " * 4, sampler=server.url)
        assert distill(ws, asked)["tokens"] > 0
    line = "  prompts      1 of 2 are left out, as they leave no room for an answer: the limit is 64 tokens"
    assert said.count(line) == 1


def test_a_context_counts_for_the_teacher_and_not_for_the_engine_that_samples(
    ws: Workspace, tmp_path: Path, said: list[str]
) -> None:
    path = ws.home / "recover.yaml"
    path.write_text(path.read_text() + "\nengine: {max_length: 64}\n")
    vars(ws).pop("config", None)
    context = {"method": "opcd", "context": "Be brief. " * 20}
    with serving(TinyEngine(tiny.chat_model())) as server:
        asked = job(tmp_path, "Say one word.", "Say two words.", sampler=server.url, **context)
        assert distill(ws, asked)["tokens"] > 0
    assert not [line for line in said if "are left out" in line]


@pytest.mark.parametrize(("stated", "length"), [((), None), ((None,), None), ((None, 128, 64), 64)])
def test_an_engine_reads_the_smallest_length_that_it_states(
    stated: tuple[int | None, ...], length: int | None
) -> None:
    student = tiny.chat_model()
    engine = TinyEngine(student)
    engine.lengths = stated
    assert length_of(EngineSampler(engine, student)) == length
    assert length_of(InProcessSampler(student)) is None


def test_every_teacher_that_a_route_names_is_looked_at(
    ws: Workspace, tmp_path: Path, said: list[str], short: str
) -> None:
    routed = {"method": "opd-multi", "routes": {"brief": short}}
    asked = job(tmp_path, "Say one word.", "Say two words, " * 4, **routed)
    distill(ws, asked)
    assert not [line for line in said if "the teacher reads" in line]  # no row takes that route
    rows = [{"prompt": "Say one word.", "route": "brief"}, {"prompt": "Say two words, " * 4}]
    lines(Path(asked.prompts), rows)
    distill(ws, asked)
    assert [line for line in said if "1 of 2 are left out" in line and "the teacher reads 80" in line]


def test_an_answer_that_the_teacher_goes_on_with_fits_into_its_length(
    ws: Workspace, tmp_path: Path, said: list[str]
) -> None:
    """The context alone leaves room; with an answer of full length in front, the teacher could not write."""
    seen = {"method": "opd-continue", "dials": {"context": "system"}, "context": "Be brief. " * 197}
    texts = "Say one word.", "Say two words. " * 3
    asked = job(tmp_path, *texts, max_new_tokens=24, steps=2, **seen)
    assert distill(ws, asked)["tokens"] > 0
    assert [line for line in said if "1 of 2 are left out" in line and "an answer of 24 tokens" in line]


def test_pairs_that_are_longer_than_the_model_reads_are_left_out(
    ws: Workspace, tmp_path: Path, said: list[str]
) -> None:
    asked = job(tmp_path, "unused", method="sft", dials={})
    rows = [{"prompt": "Say one word.", "response": text} for text in ("Word.", LONG)]
    lines(Path(asked.prompts), rows)
    distill(ws, asked)
    line = "  pairs        1 of 2 are left out, as they are longer than what is read, 2,048 tokens"
    assert said.count(line) == 1


def test_a_context_that_is_too_long_for_the_teacher_is_said(
    ws: Workspace, tmp_path: Path, said: list[str]
) -> None:
    long = {"method": "opcd", "context": "Be brief. " * 180, "max_new_tokens": 300}
    distill(ws, job(tmp_path, "Say one word.", "Say two words.", **long))
    assert [line for line in said if line.startswith("  context ")] == [
        "  context      2 of 2 prompts, with what the teacher sees and an answer of 300 tokens, exceed its "
        "2,048: shorten the context, or lower distill.max_new_tokens"
    ]


def test_an_engine_may_read_less_than_the_model(said: list[str]) -> None:
    stage: Any = SimpleNamespace(say=said.append)
    prompts = [Prompt([{"role": "user", "content": text}]) for text in ("Say one word.", "Say " * 50)]
    assert answerable(prompts, tiny.chat_model(), stage) == prompts
    assert answerable(prompts, tiny.chat_model(), stage, most=128) == prompts[:1]


def test_a_resumed_run_leaves_out_what_its_first_attempt_did(
    ws: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the evaluation's prompts are out of reach by then, and newness is measured otherwise."""
    asked = job(tmp_path, "Say one word.", "Name two birds.", "Who is Ada?")
    seen: list[PromptData] = []

    def interrupt(stage: Any, made: Any) -> None:
        seen.append(made.data)
        raise KeyboardInterrupt

    monkeypatch.setattr(stages, "run", interrupt)
    for weights in ((1.0, 0.2), (0.5, 1.0)):
        monkeypatch.setattr("pipelines.knowledge.guards.guard", weighted(*weights))
        with pytest.raises(KeyboardInterrupt):
            distill(ws, asked, key="once")
        monkeypatch.setattr("pipelines.prompts.leaks.evaluation_prompts", lambda *_: [])
    first, resumed = ([(row.text, row.weight) for row in data.prompts] for data in seen)
    assert first == resumed == [("Say one word.", 1.0), ("Who is Ada?", 0.2)]


@pytest.mark.parametrize("teaches", [False, True])
def test_a_resumed_run_refuses_an_engine_that_reads_less_than_its_prompts_need(
    ws: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, teaches: bool
) -> None:
    """It would have refused one of them in the middle of the training."""
    texts = "Say one word.", "Say three more words."

    def interrupt(stage: Any, made: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stages, "run", interrupt)
    with serving(TinyEngine(tiny.chat_model())) as server:
        engine = {"method": "opd-topk", "teacher_engine": server.url} if teaches else {"sampler": server.url}
        asked = job(tmp_path, *texts, **engine)
        needed = len(tiny.chat_model().prompt_ids([{"role": "user", "content": texts[1]}])) + 1
        needed += 4 if teaches else 0  # the answer
        server.length = needed
        with pytest.raises(KeyboardInterrupt):
            distill(ws, asked, key="once")
        server.length = needed - 1
        with pytest.raises(InputError, match=f"reads {needed - 1} tokens, .* this run chose need {needed}: "):
            distill(ws, asked, key="once")


def weighted(*weights: float) -> Any:
    """A guard that gives the rows these weights."""

    def guard(job: Any, data: PromptData, known: Any, stage: Any) -> tuple[PromptData, dict[str, Any]]:
        rows = zip(data.prompts, weights, strict=True)
        return PromptData([Prompt(row.messages, row.fields, weight) for row, weight in rows], []), {}

    return guard


def test_all_processes_train_on_what_the_first_one_chose(tmp_path: Path) -> None:
    unused: Any = None
    stage = Stage("distill-1", "distill", tmp_path, unused, unused, unused)
    rows = [Prompt([{"role": "user", "content": str(number)}]) for number in range(4)]
    read = PromptData(rows, rows[1:3])  # some are read twice, as prompts and as pairs
    kept = PromptData(rows[1:], rows[2:3])
    assert chosen_once(stage, read, lambda: (kept, {"told": 1})) == (kept, {"told": 1})
    other = PromptData(rows[:1], [])
    assert chosen_once(stage, read, lambda: (other, {})) == (kept, {"told": 1})
    assert len(json.loads((tmp_path / "pool.json").read_text())["weights"][0]) == 4
