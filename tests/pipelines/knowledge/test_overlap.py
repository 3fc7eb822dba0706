"""The overlap guard: prompts about what is new to the teacher go, all others stay in their order."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from pipelines.distillation.inputs import Data
from pipelines.distillation.prompts import Prompt
from pipelines.knowledge.guards import Taught, guard
from pipelines.knowledge.overlap import newness, overlap
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


def test_without_a_judge_every_entity_counts_as_new():
    found = overlap(PROMPTS, TEXTS)
    assert [prompt.text for prompt in found.kept] == ["Write a poem.", "Write in capitals."]
    told = found.summary()
    assert (told["prompts"], told["touch"], told["touch_new"]) == (4, 2, 2)
    assert told["examples"][0] == {"prompt": "Where does ada horn live?", "touches": ["ada horn"]}


def test_what_both_know_stays():
    def gains(said: list[tuple[str, str]]) -> list[float]:
        assert all((before + after) in " ".join(TEXTS) for before, after in said)
        return [2.0 if "Ada" in before else 0.1 for before, _ in said]

    found = overlap(PROMPTS, TEXTS, gains)
    assert [prompt.text for prompt, _ in found.dropped] == ["Where does ada horn live?"]
    assert (found.known, list(found.new)) == (1, [("ada", "horn")])


def test_documents_about_nothing_the_prompts_mention_change_nothing():
    found = overlap(PROMPTS, ["It rains. It snows."], lambda said: [1 / 0])
    assert found.kept == PROMPTS


def test_newness_is_what_the_student_learned():
    teacher, student = tiny.chat_model(), tiny.chat_model()
    said = [("Ada", " lives in Oslo"), ("Bo", " sings")]
    assert newness(student, reader(teacher))(said) == [0.0, 0.0]
    learn(student, "Ada lives in Oslo", 10)
    learned, other = newness(student, reader(teacher))(said)
    assert learned > 1 and learned > other + 1


def learn(student: ChatModel, text: str, steps: int) -> None:
    ids = torch.tensor([student.text_ids(text)])
    optimizer = torch.optim.Adam(student.model.parameters(), 1e-2)
    for _ in range(steps):
        student.model(ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_distillation_leaves_out_what_would_wipe_and_says_so():
    teacher, student, said = tiny.chat_model(), tiny.chat_model(), []
    learn(student, TEXTS[0], 25)
    known, stage = Taught(TEXTS[:1], student, reader(teacher)), SimpleNamespace(say=said.append)
    job = SimpleNamespace(settings=SimpleNamespace(overlap="drop", overlap_weight=0.2))
    data, told = guard(job, Data(PROMPTS, []), known, stage)
    assert [prompt.text for prompt in data.prompts] == [PROMPTS[0].text, PROMPTS[2].text, PROMPTS[3].text]
    assert told["overlap"]["prompts"]["touch_new"] == 1
    assert "1 of 4 prompts touch what the documents taught: left out" in said[0]
    with pytest.raises(InputError, match="--overlap keep"):
        guard(job, Data(PROMPTS[1:2], []), known, stage)
    job.settings.overlap = "weight"
    data, told = guard(job, Data(PROMPTS, []), known, stage)
    assert [prompt.text for prompt in data.prompts] == [prompt.text for prompt in PROMPTS]
    assert [prompt.weight for prompt in data.rows] == [1.0, 0.2, 1.0, 1.0]
    assert told["overlap"]["prompts"]["weight"] == 0.2
    assert "1 of 4 prompts touch what the documents taught: weighed 0.2" in said[-1]
    job.settings.overlap = "keep"
    assert guard(job, Data(PROMPTS, []), known, stage) == (Data(PROMPTS, []), {})
