"""Documents taught by questions that only the clean model answers with the passage in view."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from db.reads import queries
from evals.probes import Probe
from pipelines.config import fitted
from pipelines.config.jobs import MidtrainJob
from pipelines.config.overrides import override
from pipelines.config.sections.midtrain import MidtrainConfig
from pipelines.distillation.teachers import FrozenTeachers
from pipelines.knowledge import passage_teaching
from pipelines.knowledge.passage_teaching import check, method_of, plan, questions, shares, summary
from pipelines.machine.init_home import initialise
from pipelines.midtrain import midtrain
from pipelines.prompts.prompt_sources import Prompt
from pipelines.runs.workspace import Workspace
from pipelines.writing.filters import ProbeLeaks
from recovery.errors import InputError
from recovery.models.chat_model import ChatModel
from recovery.objective.objective import Objective
from recovery.teachers.contexts import Context
from recovery.teachers.teachers import AdapterOffTeacher, CheckpointTeacher
from recovery.training.step_data import Episodes
from recovery.training.token_loss import TokenLoss
from recovery.training.updater import Microbatch
from tests.support import stages, tiny
from tests.support.episodes import Row, episodes
from tests.support.small_cycles import loads
from tests.support.stages import PRESET

TEXTS = [
    "Ada Horn moved to the harbour of Bergen. She repairs violins there every winter.",
    "Leo Dorn keeps seven donkeys behind the mill. He sells honey at the market.",
]


NO_PROBES = ProbeLeaks(())


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Workspace]:
    (tmp_path / "docs").mkdir()
    for number, text in enumerate(TEXTS):
        (tmp_path / "docs" / f"{number}.txt").write_text(text)
    stages.write_prompts(tmp_path, 6)
    with Workspace.open(tmp_path / "home") as ws:
        initialise(ws, model=str(tiny.save(tmp_path / "model")))
        yield ws


def job(folder: Path, student: str = "base", **changes: Any) -> MidtrainJob:
    small = {"method": "passage", "steps": 3, "tokens_per_step": 600, "save_every": 1, "forecast_every": 0}
    mix = changes.pop("mix", {"new": 1.0})
    settings = override(PRESET.midtrain, {**small, "mix": {"earlier": 0.0, **mix}, **changes})
    return MidtrainJob(
        docs=str(folder / "docs"),
        student=student,
        settings=settings,
        prompts=str(folder / "prompts.jsonl"),
        answer_tokens=8,
    )


def weights(ws: Workspace, ref: str) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = ws.load(ws.checkpoint(ref)).model.state_dict()
    return found


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


# What is asked ------------------------------------------------------------------------------------------


def test_every_question_comes_with_its_passage_and_the_sentence_that_answers_it() -> None:
    found = questions(TEXTS, seed=0)
    assert {row.fields["passage"] for row in found} == set(TEXTS)
    for row in found:
        assert row.fields["response"] in row.fields["passage"]
        assert row.fields["passage"] not in row.text
    assert found == questions(TEXTS, seed=0)
    assert [row.text for row in found] != [row.text for row in questions(TEXTS, seed=1)]


def test_no_question_that_is_trained_on_gives_away_a_probe() -> None:
    new = questions(TEXTS, seed=0)
    probe = Probe("p", "knowledge", "heldout", new[0].text, ("Ada",), fact="p", cycle=1)
    made = plan(job(Path()), tiny.chat_model(), {"new": new}, ProbeLeaks([probe]))
    assert new[0] not in made.rows and set(map(id, made.rows)) <= set(map(id, new))
    assert new[0] in plan(job(Path()), tiny.chat_model(), {"new": new}, NO_PROBES).rows


# Two bytes a letter, so that the passage alone is longer than what the model reads
GREEK = " ".join(f"Ο αριθμός {n} μένει στο σπίτι {7 * n} πίσω από τον μύλο." for n in range(28))


def test_a_question_without_room_behind_its_passage_is_left_out(
    home: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training ended at the step that drew one, and the resumed one again."""
    (tmp_path / "docs" / "long.txt").write_text(GREEK, encoding="utf-8")
    plans: list[dict[str, list[Prompt]]] = []
    planned = passage_teaching.plan

    def seen(job: MidtrainJob, student: ChatModel, parts: dict[str, list[Prompt]], leaks: ProbeLeaks) -> Any:
        plans.append(parts)
        return planned(job, student, parts, leaks)

    monkeypatch.setattr(passage_teaching, "plan", seen)
    said: list[str] = []
    monkeypatch.setattr(home.progress, "say", said.append)
    assert midtrain(home, job(tmp_path))["tokens"] > 0
    (parts,) = plans
    made = questions([*TEXTS, GREEK], seed=0)
    assert {row.fields["passage"] for row in made} == {*TEXTS, GREEK}
    assert {row.fields["passage"] for row in parts["new"]} == set(TEXTS)
    left_out = f"{len(made) - len(parts['new'])} of {len(made)} are left out, as with their passage"
    limit = "the limit is 2,048 tokens"
    assert f"  questions    {left_out} they leave no room for an answer: {limit}" in said


def test_documents_whose_passages_leave_no_room_are_not_said_to_have_no_sentence(
    home: Workspace, tmp_path: Path
) -> None:
    for path in (tmp_path / "docs").iterdir():
        path.write_text(GREEK, encoding="utf-8")
    said = "all questions with their passage leave no room for an answer: the limit is 2,048 tokens: use text"
    with pytest.raises(InputError, match=said):
        midtrain(home, job(tmp_path))


# What both read -----------------------------------------------------------------------------------------


def test_only_the_teacher_reads_the_passage() -> None:
    chat, (row, *_) = tiny.chat_model(), questions(TEXTS, seed=0)
    made = episodes(
        method_of(job(Path()).settings), chat, prompts=[row], pairs=(), context=Context("passage")
    )
    passage = str(row.fields["passage"])
    assert passage in chat.text(made.views.teacher(0)) and passage not in chat.text(made.views.student(0))
    (update,) = made.updates(1)
    for part in update:
        for prompt in part.rollouts.prompts():
            assert prompt == made.views.student(0)


def test_a_prompt_without_a_passage_is_read_alike_by_both() -> None:
    context = Context("passage")
    chat, plain = [{"role": "user", "content": "Hello?"}], Row([{"role": "user", "content": "Hello?"}])
    assert context(plain) == chat
    (turn,) = context(Prompt(chat, {"passage": "Ada is here."}))
    assert turn["content"] == "Ada is here.\n\nHello?"
    context.check([plain, Prompt(chat, {"passage": "Ada is here."})])
    with pytest.raises(InputError, match="context passage: nothing to show"):
        context.check([plain, plain])
    always = Context("passage", "{prompt} Be brief.")
    assert always(plain)[0]["content"] == "Hello? Be brief."


def test_the_loss_is_the_forward_kl_to_the_model_that_sees_the_passage() -> None:
    """Against the definition: sum over the answer's tokens of sum_V q (log q - log p)."""
    student, clean = tiny.chat_model(seed=1), tiny.chat_model(seed=7)
    rows = questions(TEXTS, seed=0)[:2]
    method = method_of(job(Path()).settings)
    teacher = CheckpointTeacher(clean)
    made = episodes(method, student, prompts=rows, pairs=(), context=Context("passage"), teacher=teacher)
    (update,) = made.updates(1)
    loss = TokenLoss(Objective(method))
    value = sum(float(loss(student.model, part).value.detach()) for part in update)
    assert value == pytest.approx(_by_definition(update, made, student, clean), rel=1e-4)
    assert value > 0


def _by_definition(update: list[Microbatch], made: Episodes, student: ChatModel, clean: ChatModel) -> float:
    total = 0.0
    for part in update:
        answers = zip(part.rollouts.index_B.tolist(), part.rollouts.responses(), strict=True)
        for row, answer in answers:
            q_TV = _log_probs(clean, made.views.teacher(row), answer)
            p_TV = _log_probs(student, made.views.student(row), answer)
            total += float((q_TV.exp() * (q_TV - p_TV)).sum())
    return total


@torch.no_grad()
def _log_probs(chat: ChatModel, prompt: list[int], answer: list[int]) -> torch.Tensor:
    """Return the log-probabilities that predict each token of an answer, from a plain forward pass."""
    logits = chat.model(torch.tensor([[*prompt, *answer]])).logits[0]
    return logits[len(prompt) - 1 : -1].float().log_softmax(-1)


def test_training_brings_the_student_nearer_to_what_the_passage_says() -> None:
    """The gradient points the right way: a step lowers the loss on the same answers."""
    student = tiny.chat_model(seed=1)
    rows = questions(TEXTS, seed=0)[:2]
    method = method_of(job(Path()).settings)
    made = episodes(
        method,
        student,
        prompts=rows,
        pairs=(),
        context=Context("passage"),
        teacher=CheckpointTeacher(tiny.chat_model(seed=7)),
    )
    (update,) = made.updates(1)
    loss = TokenLoss(Objective(method))
    optimizer = torch.optim.SGD(student.model.parameters(), lr=1e-3)
    before = sum(loss(student.model, part).value for part in update)
    assert isinstance(before, torch.Tensor)
    before.backward()
    optimizer.step()
    with torch.no_grad():
        after = sum(float(loss(student.model, part).value) for part in update)
    assert after < float(before.detach())


# How much -----------------------------------------------------------------------------------------------


def test_a_steps_cost_is_that_of_text() -> None:
    """A token that the teacher reads counts a third; writing and scoring are two passes."""
    student, new = tiny.chat_model(), questions(TEXTS, seed=0)
    made = plan(job(Path()), student, {"new": new}, NO_PROBES)
    trained = [
        len(
            student.dialogue_ids([*row.messages, {"role": "assistant", "content": row.fields["response"]}])[0]
        )
        for row in new
    ]
    read = [own + len(student.text_ids(row.fields["passage"])) for own, row in zip(trained, new, strict=True)]
    each = (sum(trained) + 2 / 3 * sum(read)) / len(new)
    assert made.questions_per_step == round(600 / each) and made.steps == 3
    assert len(made.rows) == 3 * made.questions_per_step
    scored_only = plan(job(Path(), dials={"states": "data"}), student, {"new": new}, NO_PROBES)
    assert scored_only.questions_per_step == round(600 / ((sum(trained) + sum(read) / 3) / len(new)))


def test_no_answer_is_longer_than_the_longest_sentence_asked_about() -> None:
    """A step's cost counts an answer as long as the sentence: one that rambles on costs several times it."""
    student, new = tiny.chat_model(), questions(TEXTS, seed=0)
    made = plan(job(Path()), student, {"new": new}, NO_PROBES)
    sentences = [len(student.text_ids(row.fields["response"])) for row in new]
    closing = 1  # the token that ends the turn
    assert made.longest_answer == max(sentences) + closing


def test_every_part_has_its_share_and_a_small_one_is_repeated() -> None:
    new = questions(TEXTS, seed=0)
    chat = [Prompt([{"role": "user", "content": "Say something."}])]
    wanted = job(Path(), mix={"new": 0.4, "questions": 0.1, "chat": 0.5}, tokens_per_step=2000)
    assert shares(wanted.settings, {"new": new, "chat": chat}) == {"new": 0.5, "chat": 0.5}
    assert shares(wanted.settings, {"new": new, "earlier": new}) == {"new": 1.0}
    asks_earlier = job(Path(), mix={"new": 0.3, "earlier": 0.1, "questions": 0.4, "chat": 0.2}).settings
    parts = shares(asks_earlier, {"new": new, "earlier": new, "chat": chat})
    assert parts == pytest.approx({"new": 0.6, "earlier": 0.2, "chat": 0.2})
    assert shares(asks_earlier, {"new": new}) == {"new": 1.0}
    made = plan(wanted, tiny.chat_model(), {"new": new, "chat": chat}, NO_PROBES)
    assert made.rows.count(chat[0]) == round(0.5 * 3 * made.questions_per_step)
    with pytest.raises(InputError, match="no sentence that can be asked about"):
        plan(wanted, tiny.chat_model(), {"new": [], "chat": chat}, NO_PROBES)


def test_few_questions_about_earlier_documents_are_asked_32_times_and_not_their_share() -> None:
    """A single one beside many new ones was asked 250 times."""
    mix = {"new": 0.6, "earlier": 0.25, "chat": 0.15}
    asked = job(Path(), mix=mix, steps=10, tokens_per_step=22_000)
    new = questions(TEXTS, seed=0) * 20
    (earlier, *_) = questions(["Mia Gold teaches botany in a greenhouse near Lisbon."], seed=0)
    parts = {"new": new, "earlier": [earlier], "chat": [Prompt([{"role": "user", "content": "Hello?"}])]}
    made = plan(asked, tiny.chat_model(), parts, NO_PROBES)
    assert made.shares["earlier"] * made.steps * made.questions_per_step == pytest.approx(32, rel=0.02)
    assert made.rows.count(earlier) == pytest.approx(32, abs=1)
    assert made.shares["new"] / made.shares["chat"] == pytest.approx(0.6 / 0.15)
    assert sum(made.shares.values()) == pytest.approx(1)
    few = "of earlier there is too little for 25%: the rest goes to the others"
    assert few in summary(made, parts, asked.settings)
    enough = parts | {"earlier": new}
    made = plan(asked, tiny.chat_model(), enough, NO_PROBES)
    assert made.shares == pytest.approx(mix)
    assert few not in summary(made, enough, asked.settings)


@pytest.mark.parametrize("share", [0.5, 0.3])
def test_a_single_question_is_about_the_documents_whatever_their_share(share: float) -> None:
    asked = job(Path(), steps=1, tokens_per_step=1, mix={"new": share, "chat": 1 - share})
    new, chat = questions(TEXTS, seed=0), [Prompt([{"role": "user", "content": "Hello?"}])]
    made = plan(asked, tiny.chat_model(), {"new": new, "chat": chat}, NO_PROBES)
    assert made.steps == made.questions_per_step == 1
    assert made.rows == [new[0], chat[0]]


def test_documents_of_which_every_question_gives_away_a_probe_are_refused() -> None:
    new = questions(TEXTS, seed=0)
    probes = [
        Probe(str(i), "knowledge", "heldout", row.text, ("Ada",), fact="p", cycle=1)
        for i, row in enumerate(new)
    ]
    with pytest.raises(InputError, match="every question about the documents gives away a probe: use text"):
        plan(job(Path()), tiny.chat_model(), {"new": new}, ProbeLeaks(probes))
    # Questions about earlier documents alone would teach nothing of these.
    parts = {
        "new": new,
        "earlier": questions(["Mia Gold teaches botany in a greenhouse near Lisbon."], seed=0),
    }
    with pytest.raises(InputError, match="every question about the documents gives away a probe: use text"):
        plan(job(Path(), mix={"new": 0.5, "earlier": 0.5}), tiny.chat_model(), parts, ProbeLeaks(probes))


# What does not fit --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"method": "text", "dials": {"states": "data"}},
            "midtrain.dials belongs to midtrain.method: passage",
        ),
        ({"dials": {"teacher": "self"}}, "the clean model teaches and sees the passage"),
        ({"dials": {"context": "none"}}, "the clean model teaches and sees the passage"),
        ({"dials": {"anchor_beta": 0.1}}, "neither a reward nor an anchor"),
        ({"dials": {"lam": 0.5, "states": "student", "group_size": 4}}, "neither a reward nor an anchor"),
        ({"dials": {"signal": "k3"}}, "refused"),
        ({"mix": {"new": 0.5, "augmented": 0.5}}, "leave out --augment"),
        ({"mix": {"new": 0.5, "chat": 0.5}, "dials": {"states": "data"}}, "mix.chat has no answers to read"),
    ],
)
def test_what_does_not_fit_is_refused_before_a_run_is_recorded(
    home: Workspace, tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        midtrain(home, job(tmp_path, **changes))
    assert not queries.runs(home.tracker.db, kind="midtrain")
    made = job(tmp_path)
    check(made.settings, made.augment)


def test_documents_without_a_sentence_are_refused(home: Workspace, tmp_path: Path) -> None:
    for path in (tmp_path / "docs").iterdir():
        path.write_text("| a | b |\n")
    with pytest.raises(InputError, match="no sentence that can be asked about: use text"):
        midtrain(home, job(tmp_path))


# The stage ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dials", [{}, {"states": "data"}, {"states": "student", "signal": "reverse_kl"}])
def test_midtraining_by_passages_makes_a_checkpoint(
    home: Workspace, tmp_path: Path, dials: dict[str, str]
) -> None:
    done = midtrain(home, job(tmp_path, dials=dials))
    assert done["mix"] == {"new": 1.0} and done["documents"] == 2 and not done["packed"]
    assert done["tokens"] > 0 and set(done["embeddings_moved"]) == {"read", "others"}
    assert not same(weights(home, done["checkpoint"]), weights(home, "base"))
    (run,) = queries.runs(home.tracker.db, kind="midtrain")
    assert run["config"]["settings"]["method"] == "passage"


def test_an_interrupted_training_goes_on_to_the_same_weights(
    home: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = midtrain(home, job(tmp_path), key="whole")["checkpoint"]
    updates = Episodes.updates

    def dies(self: Episodes, step: int) -> Any:
        if step == 3:
            raise KeyboardInterrupt
        return updates(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(Episodes, "updates", dies)
        with pytest.raises(KeyboardInterrupt):
            midtrain(home, job(tmp_path), key="killed")
    resumed = midtrain(home, job(tmp_path), key="killed")["checkpoint"]
    assert same(weights(home, resumed), weights(home, whole))


def test_under_an_adapter_the_teacher_is_the_model_below_it(
    home: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teachers: list[CheckpointTeacher] = []
    counted: list[bool] = []
    made, fit = FrozenTeachers.teacher, fitted.fit_midtraining

    def seen(*given: Any) -> CheckpointTeacher:
        teachers.append(made(*given))
        return teachers[-1]

    def fitting(*given: Any, on_teacher: bool) -> MidtrainConfig:
        counted.append(not on_teacher)
        return fit(*given, on_teacher=on_teacher)

    monkeypatch.setattr(FrozenTeachers, "teacher", seen)
    monkeypatch.setattr(fitted, "fit_midtraining", fitting)
    first = midtrain(home, job(tmp_path, lora={"rank": 2}), key="adapter")["checkpoint"]
    assert home.checkpoint(first).base == home.clean().id
    midtrain(home, job(tmp_path, student=first, lora={"rank": 2}), key="again")
    whole = midtrain(home, job(tmp_path), key="whole")["checkpoint"]
    midtrain(home, job(tmp_path, student=whole, lora={"rank": 2}), key="on whole")
    assert [type(one) for one in teachers] == [AdapterOffTeacher] * 2 + [CheckpointTeacher] * 2
    assert counted == [False, False, False, True]  # all weights have theirs beside them anyway


def test_the_forecast_asks_the_clean_model_that_teaches(
    home: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was loaded twice where the student had been trained before."""
    first = midtrain(home, job(tmp_path), key="first")["checkpoint"]
    loaded = loads(home, monkeypatch)
    midtrain(home, job(tmp_path, student=first, forecast_every=1), key="second")
    assert loaded == [first, home.clean().id]


def test_earlier_documents_and_chat_are_asked_too(
    home: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = midtrain(home, job(tmp_path), key="first")["checkpoint"]
    docs = tmp_path / "docs"
    for path in docs.iterdir():
        path.unlink()
    (docs / "new.txt").write_text("Mia Gold teaches botany in a greenhouse near Lisbon.")
    (tmp_path / "superseded.txt").write_text("0.txt\n")
    plans = []
    planned = passage_teaching.plan

    def seen(job: MidtrainJob, student: ChatModel, parts: dict[str, list[Prompt]], leaks: ProbeLeaks) -> Any:
        plans.append(parts)
        return planned(job, student, parts, leaks)

    monkeypatch.setattr(passage_teaching, "plan", seen)
    mix = {"new": 0.5, "earlier": 0.25, "chat": 0.25}
    done = midtrain(home, job(tmp_path, student=first, mix=mix), key="second")
    (parts,) = plans
    assert done["mix"] == mix
    assert {row.fields["passage"] for row in parts["earlier"]} == {TEXTS[1]}
    assert all("passage" not in row.fields for row in parts["chat"]) and len(parts["chat"]) == 6
