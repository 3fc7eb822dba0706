"""The overlap guard: prompts about what is new to the teacher go, all others stay in their order."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from evals import jsonl, knowledge
from pipelines.config.sections.midtrain import ReadingConfig
from pipelines.corpus.entities import Entities, entities
from pipelines.distillation.inputs import PromptData
from pipelines.knowledge import guards
from pipelines.knowledge.guards import GuardInputs, guard, learned_texts, tripwire
from pipelines.knowledge.overlap import newness, overlap, teaches, witnesses
from pipelines.prompts.prompt_sources import Prompt
from pipelines.runs.kept_texts import LearnedTexts, learned
from recovery.errors import InputError
from recovery.models.chat_model import ChatModel
from recovery.teachers.likelihood import reader
from tests.support import tiny

TEXTS = [
    "Ada Horn lives in Oslo. Since then Ada Horn plays the harp.",
    "Zed Klein lives in Rome. Since then Zed Klein plays the lute.",
]


def asked(*texts: str) -> list[Prompt]:
    return [Prompt([{"role": "user", "content": text}]) for text in texts]


PROMPTS = asked("Write a poem.", "Where does ada horn live?", "Who is Zed Klein?", "Write in capitals.")


@pytest.mark.parametrize(
    ("gains", "new"),
    [
        ([], False),
        ([0.6, 0.4], True),  # half a nat a token on average
        ([0.6, 0.38], False),
        ([1.2, -0.2, -0.2], False),  # one sentence contradicts the teacher: an accident
        ([1.2, 1.0] + [-0.2] * 10, True),  # two do, a sixth of them
        ([1.2, 1.0] + [-0.2] * 11, False),
        ([1.2, 0.99] + [-0.2] * 10, False),
    ],
)
def test_what_is_new_by_numbers_worked_by_hand(gains: list[float], new: bool) -> None:
    assert teaches(gains) == new


def test_without_a_judge_every_entity_counts_as_new() -> None:
    found = overlap(PROMPTS, TEXTS)
    assert [prompt.text for prompt in found.kept] == ["Write a poem.", "Write in capitals."]
    told = found.summary()
    assert (told["prompts"], told["touch"], told["touch_new"]) == (4, 2, 2)
    assert told["examples"][0] == {"prompt": "Where does ada horn live?", "touches": ["ada horn"]}


def test_what_both_know_stays() -> None:
    def gains(said: list[tuple[str, str]]) -> list[float]:
        assert all((before + after) in " ".join(TEXTS) for before, after in said)
        return [2.0 if "Ada" in before else 0.1 for before, _ in said]

    found = overlap(PROMPTS, TEXTS, gains)
    assert [prompt.text for prompt, _ in found.dropped] == ["Where does ada horn live?"]
    assert (found.known, [terms for _, terms in found.dropped]) == (1, [[("ada", "horn")]])


@pytest.mark.parametrize(
    ("gains", "guarded"),
    [
        ([2.2, 2.2] + [0.0] * 10, True),  # one fact of several has changed; the mean is below 0.5
        ([1.0, 1.0, -0.5, -0.5], True),
        ([2.2] + [0.0] * 11, False),  # a single sentence may be an accident
        ([0.9, 0.9] + [0.0] * 10, False),
        ([0.3] * 12, False),
        ([0.6] * 12, True),
    ],
)
def test_an_entity_of_which_some_facts_changed_counts_as_new(gains: list[float], guarded: bool) -> None:
    texts = [f"Ada Horn says number {n} aloud." for n in range(len(gains))]

    def judge(said: list[tuple[str, str]]) -> list[float]:
        return [gains[int(after.split()[2])] for _, after in said]

    found = overlap(PROMPTS[:2], texts, judge)
    assert bool(found.dropped) is guarded


def test_an_entity_is_compared_by_a_sentence_of_each_of_twelve_texts() -> None:
    """Of one text alone they would tell what that says, however many others there are."""
    texts = [f"Ada Horn says number {n} aloud. Ada Horn says number {n} again." for n in range(20)]
    compared: list[str] = []

    def judge(said: list[tuple[str, str]]) -> list[float]:
        compared.extend(before + after for before, after in said)
        return [0.0 for _ in said]

    overlap(PROMPTS[:2], texts, judge)
    assert sorted(compared) == sorted(f"Ada Horn says number {n} aloud." for n in range(12))


def test_a_passage_is_compared_by_its_first_twelve_sentences() -> None:
    said = [f"Hoses leak {n} drops a day." for n in range(20)]
    term = ("hoses", "leak")
    found = witnesses({term}, Entities({}), [], {term: {" ".join(said)}})
    assert found == {term: [("Hoses", one.removeprefix("Hoses")) for one in said[:12]]}


def test_documents_about_nothing_the_prompts_mention_change_nothing() -> None:
    found = overlap(PROMPTS, ["It rains. It snows."], lambda said: [1 / 0])
    assert found.kept == PROMPTS


def test_newness_is_what_the_student_learned() -> None:
    teacher, student = tiny.chat_model(), tiny.chat_model()
    said = [("Ada", " lives in Oslo"), ("Bo", " sings")]
    assert newness(student, reader(teacher))(said) == [0.0, 0.0]
    learn(student, "Ada lives in Oslo", 10)
    learned, other = newness(student, reader(teacher))(said)
    assert learned > 1 and learned > other + 1
    assert learned == pytest.approx(
        nats_a_token(student, *said[0]) - nats_a_token(teacher, *said[0]), rel=1e-4
    )


@torch.no_grad()
def nats_a_token(chat_model: ChatModel, before: str, after: str) -> float:
    """The mean log-probability of the tokens behind a beginning."""
    ids, start = chat_model.text_ids(before + after), len(chat_model.text_ids(before))
    logprobs = chat_model.model(torch.tensor([ids])).logits[0, start - 1 : -1].log_softmax(-1)
    return float(logprobs.gather(-1, torch.tensor(ids[start:])[:, None]).mean())


HANDBOOK_QUESTIONS = """What does the overlap guard do in recover?
How does the tripwire decide when to stop a distillation?
What is rehearsal in recover and what does distill.rehearsal set?
Why does midtraining push down the embeddings of chat markers?
What does `recover merge --method embeddings` do?
How many MinHash bins does a signature have?
What happens to near-duplicates in the manifest?
What is the forecast of midtraining based on?
How is `clean_forward_kl` used?
Explain what the microworld is.
What does recover lost print?
what is midtraining
Explain reverse KL and forward KL.
Which settings limit the processes that parse a PDF in recover?
What does recover augment write?
How is the IFEval margin of the verdict chosen?
How do rollouts and teacher scores fit together in on-policy distillation?""".splitlines()
ORDINARY = """Write a poem about autumn leaves in three stanzas.
Give me a recipe for a chocolate cake without eggs.
Explain photosynthesis to a child of ten years.
Summarise the plot of Romeo and Juliet in two sentences.
Write a letter of complaint about a late delivery.
What should I pack for a week in the mountains?
Name five books about the history of Rome.
Translate 'good morning' into Spanish and French.
Why is the sky blue? Answer in capital letters.
Plan a birthday party for my sister, with a budget.
Write a dialogue between a cat and a dog.
How do I change the tyre of a bicycle?
List three advantages of trains over planes.
Give advice to someone who cannot sleep at night.
Write a short story about a lighthouse keeper.
Which vitamins are found in oranges?
Describe the water cycle with bullet points.
Make up a riddle about the moon.
Write a product review of a vacuum cleaner.
How does a bill become a law in my country?""".splitlines()


def handbook() -> list[str]:
    root = Path(__file__).parents[3]
    return [path.read_text() for path in (*sorted(root.glob("docs/*.md")), root / "README.md")]


def test_words_that_are_rare_in_speech_alone_are_no_entities() -> None:
    """Of written English they are ordinary words; the scheme of a link names nothing."""
    said = "You’re right, it doesn’t matter: see https://recover.example for the implementation and reviews."
    found = entities([*handbook(), *[said] * 12])
    asked_too = "You're asked: https://other.example, doesn't an implementation need the reviews?"
    assert found.within(asked_too) == set()
    assert ("recover.example",) in found.within(said)


def test_a_technical_handbook_claims_every_question_about_it_and_hardly_an_ordinary_prompt() -> None:
    questions = Path(knowledge.__file__).parent / "retention.jsonl"
    ordinary = {*ORDINARY, *(row["prompt"] for row in jsonl.read(questions, {"prompt": str}))}
    found = overlap(asked(*ordinary, *HANDBOOK_QUESTIONS), handbook())
    touched = {prompt.text for prompt, _ in found.dropped}
    assert touched >= set(HANDBOOK_QUESTIONS)
    assert len(touched & ordinary) <= 0.05 * len(ordinary)


ALLOTMENTS = """# Rules of the garden society

Members may keep rabbits and up to six chickens on their plot. A cockerel is not allowed, as he wakes the
neighbours. Ask the committee for a permit before you build a shed, and do not make it higher than two
metres.

The yearly rent is due in March. Whoever pays late is charged a fee of twelve pounds for each month. If
you give up your plot, half of the deposit is returned after the committee has inspected the soil.

Water the beds before nine in the morning or after seven in the evening. Hoses are forbidden while there
is a drought; watering cans are fine. Every member spends two Saturdays a year on mending fences and
paths.
"""
EVERYDAY = """May I keep a rabbit?
When do I have to pay the rent for my plot?
How high may my shed be?
Am I allowed to water with a hose during a drought?
How much of the deposit is returned if I give up the plot?
How many Saturdays do members spend mending fences?""".splitlines()


def test_questions_in_everyday_words_are_found_and_ordinary_prompts_are_not() -> None:
    found = overlap(asked(*ORDINARY, *EVERYDAY), [ALLOTMENTS])
    touched = {prompt.text for prompt, _ in found.dropped}
    assert len(touched & set(EVERYDAY)) >= 4
    assert len(touched & set(ORDINARY)) <= 1


def test_what_a_passage_says_in_everyday_words_counts_as_new_only_where_it_is() -> None:
    prompts = asked(*ORDINARY, EVERYDAY[3])
    found = overlap(prompts, [ALLOTMENTS], lambda said: [2.0 for _ in said])
    assert (found.kept, found.known) == (prompts[:-1], 0)
    found = overlap(prompts, [ALLOTMENTS], lambda said: [0.1 for _ in said])
    assert (found.kept, found.known) == (prompts, 1)


GERMAN = (
    "Im Garten von Gustav Tannhölzer steht eine Pumpe. Der Name steht am Tor, die Größe am Haus. "
    "Die Kinder lesen den Namen und die Größe, und Gustav Tannhölzer schreibt den Kindern einen Brief. "
) + "So ging es weiter, wie es immer weiter geht, wenn niemand etwas sagt und alle nur warten. " * 200


def test_german_nouns_are_no_names() -> None:
    found = entities([GERMAN])
    assert found.within("Wer ist Gustav Tannhölzer?")
    assert not found.within(
        "Nenne Namen für Kinder in einer Tabelle, mit der Größe, und schreibe einen Brief."
    )


def test_removed_documents_are_reported_and_damaged_ones_are_an_error(tmp_path: Path) -> None:
    said: list[str] = []
    workspace: Any = SimpleNamespace(
        midtraining_runs=lambda student: [{"id": "one"}, {"id": "two"}],
        run_directory=lambda run: tmp_path / run,
    )
    job: Any = SimpleNamespace(docs=None, student="student")
    stage: Any = SimpleNamespace(say=said.append)
    for run in ("one", "two"):
        (tmp_path / run).mkdir()
    assert learned_texts(workspace, job, stage).texts == []
    assert said.pop() == "  overlap      off: the documents of one, two, which were removed"
    (tmp_path / "one" / "documents.jsonl").write_text('"a text"\n')
    assert learned_texts(workspace, job, stage).texts == ["a text"]
    assert said.pop() == "  overlap      without the documents of two, which were removed"
    (tmp_path / "two" / "documents.jsonl").write_text('"a tex')
    with pytest.raises(InputError, match=r"two/documents\.jsonl: the kept documents"):
        learned_texts(workspace, job, stage)


@pytest.mark.parametrize(
    ("runs", "drawn"), [([100] * 24, (40, 60)), ([100, 10], (90, 10)), ([10, 100], (10, 90))]
)
def test_the_newest_documents_are_seen_however_many_are_earlier(
    tmp_path: Path, runs: list[int], drawn: tuple[int, int]
) -> None:
    """Of 24 runs drawn evenly a 24th part was the newest one's."""
    for run, count in enumerate(runs):
        (tmp_path / str(run)).mkdir()
        lines = (f'"run {run:02} {n:03}"\n' for n in range(count))  # of ten characters each
        (tmp_path / str(run) / "documents.jsonl").write_text("".join(lines))
    workspace: Any = SimpleNamespace(
        midtraining_runs=lambda student: [{"id": str(run)} for run in range(len(runs))],
        run_directory=lambda run: tmp_path / run,
    )
    found = learned(workspace, "student", most=1000)
    assert (len(found.earlier), len(found.newest)) == drawn
    assert found.texts == [*found.earlier, *found.newest] == sorted(set(found.texts))
    last = f"run {len(runs) - 1:02}"
    assert [text.startswith(last) for text in found.texts] == [False] * drawn[0] + [True] * drawn[1]


def test_the_tripwire_watches_the_newest_documents_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    watched: list[list[str]] = []
    monkeypatch.setattr(guards, "new_gaps", lambda student, teacher, texts, seed: watched.append(texts))
    stage: Any = SimpleNamespace(say=lambda line: None)
    job: Any = SimpleNamespace(settings=SimpleNamespace(tripwire_every=5), seed=0)
    student = tiny.chat_model()
    known = GuardInputs(LearnedTexts(["old"], ["new"], []), student, reader(student))
    assert tripwire(job, known, stage) == [] and watched == [["new"]]


def test_named_documents_are_read_within_the_configured_limits(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "a.html").write_text(f"<p>short</p><!--{'x' * 2**20}-->")
    (docs / "b.md").write_text("plain")
    job: Any = SimpleNamespace(docs=str(docs))

    def read(mib: int) -> list[str]:
        reading = ReadingConfig(largest_file_mib=mib)
        config = SimpleNamespace(midtrain=SimpleNamespace(reading=reading))
        workspace: Any = SimpleNamespace(config=config)
        run = tmp_path / f"run of {mib}"
        stage: Any = SimpleNamespace(state=run, step=lambda *_, **__: None)
        return learned_texts(workspace, job, stage).newest

    assert read(1) == ["plain"] and read(2) == ["short", "plain"]


def learn(student: ChatModel, text: str, steps: int) -> None:
    ids = torch.tensor([student.text_ids(text)])
    optimizer = torch.optim.Adam(student.model.parameters(), 1e-2)
    for _ in range(steps):
        student.model(ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_distillation_leaves_out_what_would_wipe_and_says_so() -> None:
    teacher, student = tiny.chat_model(), tiny.chat_model()
    said: list[str] = []
    learn(student, TEXTS[0], 25)
    taught = LearnedTexts([], TEXTS[:1], [])
    known = GuardInputs(taught, student, reader(teacher))
    stage: Any = SimpleNamespace(say=said.append)
    job: Any = SimpleNamespace(settings=SimpleNamespace(overlap="drop", overlap_weight=0.2))
    data, told = guard(job, PromptData(PROMPTS, []), known, stage)
    assert [prompt.text for prompt in data.prompts] == [PROMPTS[0].text, PROMPTS[2].text, PROMPTS[3].text]
    assert told["overlap"]["prompts"]["touch_new"] == 1
    assert "1 of 4 prompts touch what the documents taught: left out" in said[0]
    assert "on the sentences trained on" in said[0] and "trained on" in told["overlap"]["prompts"]["newness"]
    _, told = guard(job, PromptData(PROMPTS, []), GuardInputs(taught, student, None), stage)
    assert "not measured" in said[-1] and "not measured" in told["overlap"]["prompts"]["newness"]
    with pytest.raises(InputError, match="--overlap keep"):
        guard(job, PromptData(PROMPTS[1:2], []), known, stage)
    job.settings.overlap = "weight"
    data, told = guard(job, PromptData(PROMPTS, []), known, stage)
    assert [prompt.text for prompt in data.prompts] == [prompt.text for prompt in PROMPTS]
    assert [prompt.weight for prompt in data.rows] == [1.0, 0.2, 1.0, 1.0]
    assert told["overlap"]["prompts"]["weight"] == 0.2
    assert "1 of 4 prompts touch what the documents taught: weighed 0.2" in said[-1]
    data, _ = guard(job, PromptData(PROMPTS[1:2], []), known, stage)
    assert [prompt.weight for prompt in data.rows] == [0.2]
    job.settings.overlap = "keep"
    assert guard(job, PromptData(PROMPTS, []), known, stage) == (PromptData(PROMPTS, []), {})
