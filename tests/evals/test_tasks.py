"""Any lm-eval task through our own model: the numbers of lm-eval's own, local data, nothing asked in vain."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from db.reads import queries
from evals import nltk_sentences
from evals.intervals import clustered_interval, wilson_interval
from evals.scores import Asked, ModelCalls, subsample
from evals.tasks import names as task_names
from evals.tasks import runner
from evals.tasks import suite as tasks
from evals.tasks.runner import PreparedTask
from pipelines.config.jobs import EvalJob
from pipelines.config.sections.eval import EvalConfig
from pipelines.evaluate import evaluate
from pipelines.evaluation.model_answers import ModelAnswers
from pipelines.evaluation.suites import suites_of
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError, RecoverError
from tests.support import tiny

pytestmark = pytest.mark.new_home
CHOICE = """
task: colours
dataset_path: json
dataset_kwargs: {data_files: {test: colours-data.json}}
output_type: multiple_choice
test_split: test
doc_to_text: "The {{thing}} is"
doc_to_choice: ["green", "red and blue"]
doc_to_target: "{{label}}"
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
"""
WRITE = """
task: sums
dataset_path: json
dataset_kwargs: {data_files: {test: sums-data.json}}
output_type: generate_until
test_split: test
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["."], max_gen_toks: 8, do_sample: false}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "tasks"
    place.mkdir()
    (place / "colours.yaml").write_text(CHOICE)
    (place / "sums.yaml").write_text(WRITE)
    things = [
        {"thing": name, "label": i % 2} for i, name in enumerate(["leaf", "sea ", "sun", "sky", "moss"])
    ]
    (place / "colours-data.json").write_text(json.dumps(things))
    (place / "sums-data.json").write_text(
        json.dumps([{"question": f"{i}+{i}=", "answer": "4"} for i in range(4)])
    )
    return place


def job(ws: Workspace, folder: Path, *suites: str, **changes: Any) -> EvalJob:
    small: dict[str, Any] = {
        "max_new_tokens": 8,
        "probe_max_new_tokens": 4,
        "ifeval": "none",
        "tasks": str(folder),
    }
    settings = EvalConfig(**small | changes)
    return EvalJob(checkpoint=ws.clean().id, suites=suites, settings=settings)


def canned(likely: str) -> ModelCalls:
    return ModelCalls(
        lambda asked, limit, temperature: [f"{'4' if '2+' in str(one) else 'no'}. And on" for one in asked],
        lambda pairs: [(0.0 if likely in text else -5.0, False) for _, text in pairs],
    )


def test_choices_and_written_answers_are_scored_by_the_tasks_own_rules(folder: Path) -> None:
    score, raw = tasks.evaluate(tasks.prepare("colours", folder), canned("green"))
    assert (score.value, score.n, score.metric) == (0.6, 5, "acc")
    assert [item.passed for item in score.items] == [True, False, True, False, True]
    assert score.items[0].response == " green"
    assert raw["results"]["colours"]["acc,none"] == 0.6
    score, _ = tasks.evaluate(tasks.prepare("sums", folder), canned(""))
    assert [(item.response, item.passed) for item in score.items] == [
        ("no", False),
        ("no", False),
        ("4", True),
        ("no", False),
    ]


def test_a_sentence_model_is_there_before_a_task_is_loaded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """leaderboard_ifeval counts sentences too, and lm-eval downloads a model where NLTK finds none."""
    import nltk

    monkeypatch.setattr(nltk.data, "path", [])
    tasks.prepare("sums", folder)
    assert nltk_sentences.name() == "fallback"


def judged_by(name: str, folder: Path) -> list[str]:
    score, _ = tasks.evaluate(tasks.prepare(name, folder), canned(""))
    return [item.detail["judged_by"] for item in score.items]


def test_an_item_tells_a_row_from_one_with_another_answer_however_long(folder: Path) -> None:
    """As those of gsm8k, whose targets end in the number, behind a solution of several lines."""
    rows = [{"question": f"{i}+{i}=", "answer": "so " * 200 + "4"} for i in range(4)]
    (folder / "sums-data.json").write_text(json.dumps(rows))
    before = judged_by("sums", folder)
    assert judged_by("sums", folder) == before
    rows[2]["answer"] = "so " * 200 + "5"
    (folder / "sums-data.json").write_text(json.dumps(rows))
    assert [one == other for one, other in zip(before, judged_by("sums", folder), strict=True)] == [
        True,
        True,
        False,
        True,
    ]


def test_an_item_tells_a_row_from_one_with_other_choices_behind_the_same_prompt(folder: Path) -> None:
    before = judged_by("colours", folder)
    (folder / "colours.yaml").write_text(CHOICE.replace("red and blue", "red or blue"))
    assert not set(before) & set(judged_by("colours", folder))


def test_rows_that_repeat_a_question_count_once(folder: Path) -> None:
    things = [
        {"thing": name, "label": label} for name, label in [("sea", 1), ("sun", 0), ("sea", 1), ("sea", 0)]
    ]
    (folder / "colours-data.json").write_text(json.dumps(things))
    score, _ = tasks.evaluate(tasks.prepare("colours", folder), canned("green"))
    clusters = [item.cluster for item in score.items]
    assert clusters[0] == clusters[2] and len(set(clusters)) == 3  # the last has another answer


@pytest.mark.parametrize(("times", "limit"), [(1, None), (3, None), (3, 7)])
def test_rows_that_repeat_a_question_make_a_score_no_surer(
    folder: Path, times: int, limit: int | None
) -> None:
    things = [{"thing": f"leaf {n}", "label": n % 4 // 3} for n in range(12)] * times
    (folder / "colours-data.json").write_text(json.dumps(things))
    prepared = tasks.prepare("colours", folder)
    score, _ = tasks.evaluate(prepared, canned("green"), limit=limit)
    clusters = [item.cluster for item in score.items]
    assert score.interval == clustered_interval([item.passed for item in score.items], clusters)
    settings = EvalConfig(tasks=str(folder), limit=limit)
    (suite,) = suites_of(EvalJob(checkpoint="c", suites=("colours",), settings=settings))
    assert suite.independent == len(set(clusters)) and (limit or suite.independent == 12)
    if not limit:
        assert score.interval == pytest.approx(wilson_interval(9, 12), abs=1e-12 if times == 1 else 0.05)


@pytest.mark.parametrize("in_chat", [False, True])
def test_rows_that_repeat_a_question_count_once_whatever_their_examples(folder: Path, in_chat: bool) -> None:
    things = [{"thing": name, "label": 1} for name in ("sea", "sky", "sea", "moss", "leaf", "sun")]
    (folder / "colours-data.json").write_text(json.dumps(things))
    (folder / "colours.yaml").write_text(f"{CHOICE}num_fewshot: 2\n")
    prepared = tasks.prepare("colours", folder, in_chat=in_chat)
    score, _ = tasks.evaluate(prepared, canned("green"), in_chat=in_chat)
    assert score.items[0].prompt != score.items[2].prompt  # other examples were drawn
    clusters = [item.cluster for item in score.items]
    assert clusters[0] == clusters[2] and len(set(clusters)) == 5


def test_perplexities_of_texts_are_refused_before_any_is_computed(folder: Path) -> None:
    rolling = CHOICE.replace("multiple_choice", "loglikelihood_rolling").replace(
        "task: colours", "task: read"
    )
    (folder / "read.yaml").write_text(rolling)
    with pytest.raises(InputError, match="read: gives the perplexity of texts, not answers"):
        tasks.prepare("read", folder)


def test_the_score_is_the_first_mean_that_is_the_better_the_higher(folder: Path) -> None:
    """As lambada_openai, whose perplexity comes before its accuracy."""
    metrics = "  - {metric: perplexity, aggregation: perplexity, higher_is_better: false}\n"
    likelihood = CHOICE.replace("multiple_choice", "loglikelihood").replace(
        '["green", "red and blue"]', "null"
    )
    (folder / "colours.yaml").write_text(likelihood.replace("metric_list:\n", f"metric_list:\n{metrics}"))
    sure = ModelCalls(canned("").generate, lambda pairs: [(-0.1, "sea" in asked) for asked, _ in pairs])
    score, _ = tasks.evaluate(tasks.prepare("colours", folder), sure)
    assert score.metric == "acc"
    assert [item.passed for item in score.items] == [False, True, False, False, False]


@pytest.mark.parametrize(
    "metric",
    [
        "{metric: acc, aggregation: mean, higher_is_better: false}",
        "{metric: mcc, aggregation: matthews_corrcoef, higher_is_better: true}",
    ],
)
def test_metrics_that_no_document_can_pass_are_refused_before_any_is_computed(
    folder: Path, metric: str
) -> None:
    usual = "{metric: acc, aggregation: mean, higher_is_better: true}"
    (folder / "colours.yaml").write_text(CHOICE.replace(usual, metric))
    with pytest.raises(InputError, match=r"colours: none of its metrics \((acc|mcc)\) is a mean"):
        tasks.prepare("colours", folder)


@pytest.mark.parametrize("grade", ["42.0", "-1.0", "float('nan')"])
def test_grades_on_another_scale_are_refused(folder: Path, grade: str) -> None:
    (folder / "grades.py").write_text(f"def grade(doc, results):\n    return {{'grade': {grade}}}\n")
    graded = WRITE.replace("exact_match", "grade") + "process_results: !function grades.grade\n"
    (folder / "sums.yaml").write_text(graded)
    prepared = tasks.prepare("sums", folder)
    kept: list[dict[str, Any]] = []
    with pytest.raises(InputError, match=r"sums: metric grade gives .* for a document, not 0 to 1"):
        tasks.evaluate(prepared, canned(""), keep=kept.append)
    assert len(kept[0]["samples"]["sums"]) == 4  # the answers were written all the same


def test_a_metric_on_another_scale_leaves_the_score_to_the_next(folder: Path) -> None:
    """As truthfulqa_gen, whose bleu_max goes up to 100 and stands before its bleu_acc."""
    grade = "def grade(doc, results):\n    return {'most': 42.0, 'won': int(results[0] == '4')}\n"
    (folder / "grades.py").write_text(grade)
    next_one = "  - {metric: won, aggregation: mean, higher_is_better: true}\n"
    graded = WRITE.replace("exact_match", "most") + next_one + "process_results: !function grades.grade\n"
    (folder / "sums.yaml").write_text(graded)
    score, _ = tasks.evaluate(tasks.prepare("sums", folder), canned(""))
    assert (score.metric, score.value) == ("won", 0.25)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("unsafe_code: true", "sums: runs code that the model wrote"),
        ("doc_to_image: [picture]", "sums: asks about images or sounds"),
        ("doc_to_audio: [sound]", "sums: asks about images or sounds"),
    ],
)
def test_tasks_of_code_and_pictures_are_refused_before_lm_eval_runs_any(
    folder: Path, setting: str, said: str
) -> None:
    """What mbpp and humaneval name runs code as it is read, and fails with advice to lm-eval's own users."""
    (folder / "grades.py").write_text("raise ValueError('set HF_ALLOW_CODE_EVAL=1')\n")
    (folder / "sums.yaml").write_text(f"{WRITE}{setting}\nprocess_results: !function grades.grade\n")
    with pytest.raises(InputError, match=f"{said}.*: name another task"):
        tasks.prepare("sums", folder)


def test_of_texts_that_differ_before_one_ending_the_likely_one_is_the_answer(folder: Path) -> None:
    """As winogrande, whose choices stand in the question: both answers were the same text."""
    settings = CHOICE.replace('"The {{thing}} is"', '"{{label}}"').replace(
        '["green", "red and blue"]', '["It is green", "It is red and blue"]'
    )
    (folder / "colours.yaml").write_text(
        settings.replace('doc_to_target: "{{label}}"', 'doc_to_target: "all day."')
    )
    likely = ModelCalls(
        canned("").generate, lambda pairs: [(0.0 if "red" in asked else -5.0, False) for asked, _ in pairs]
    )
    score, _ = tasks.evaluate(tasks.prepare("colours", folder), likely)
    assert [(item.response, item.passed) for item in score.items[:2]] == [
        ("red and blue", False),
        ("red and blue", True),
    ]
    assert len({item.cluster for item in score.items}) == 2  # by the right one of the same two


THING_IS = """'{{["The " + thing + " is", "All are"]}}'"""


@pytest.mark.parametrize(
    ("question", "choices", "target", "asked"),
    [
        ('"The {{thing}} is"', '["green", "red"]', '"{{label}}"', ["The leaf is", "The sea  is"]),
        ('"{{label}}"', THING_IS, '"green."', ["The leaf is green.", "All are green."]),
        ('""', THING_IS, "0", ["The leaf is", "All are"]),
    ],
    ids=["question", "as winogrande", "as blimp"],
)
def test_a_task_that_ranks_whole_texts_asks_these(
    folder: Path, question: str, choices: str, target: str, asked: list[str]
) -> None:
    """Its question is the number of the right one, or blank."""
    settings = CHOICE.replace('"{{label}}"', target).replace('"The {{thing}} is"', question)
    (folder / "colours.yaml").write_text(settings.replace('["green", "red and blue"]', choices))
    assert tasks.prompts(tasks.prepare("colours", folder))[:2] == asked


RIDDLES = """
task: riddles
output_type: multiple_choice
test_split: test
process_docs: !function shuffling.process_docs
doc_to_text: "{{question}}"
doc_to_choice: options
doc_to_target: right
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
"""
SHUFFLING = """
import random

def process_docs(rows):
    def shuffled(row):
        options = random.sample(["yes", "no", "maybe", "never"], 4)
        return {**row, "options": options, "right": options.index("yes")}

    return rows.map(shuffled)
"""


def riddles(folder: Path, settings: str = "", rows: int = 12) -> None:
    """Write a task that shuffles its options whenever its rows are processed, as GPQA's does."""
    (folder / "riddles.yaml").write_text(RIDDLES + settings)
    (folder / "shuffling.py").write_text(SHUFFLING)
    (folder / "riddles.jsonl").write_text("".join(f'{{"question": "Is {n}?"}}\n' for n in range(rows)))


def test_the_options_that_were_asked_are_those_that_are_scored(folder: Path) -> None:
    riddles(folder)
    state = random.getstate()
    prepared = tasks.prepare("riddles", folder)
    score, _ = tasks.evaluate(prepared, canned("yes"))
    assert (score.value, score.n) == (1.0, 12)
    orders = [doc["options"] for doc in prepared.loaded["tasks"]["riddles"].eval_docs]
    assert len(set(map(tuple, orders))) > 1
    again = tasks.prepare("riddles", folder).loaded["tasks"]["riddles"].eval_docs
    assert [doc["options"] for doc in again] == orders
    assert random.getstate() == state


@pytest.mark.parametrize(
    "splits",
    [
        "test_split: test\ntraining_split: train\n",
        "test_split: test\nfewshot_split: dev\n",
        "validation_split: validation\nfewshot_split: train\n",
    ],
)
def test_no_question_is_among_its_own_examples(folder: Path, splits: str) -> None:
    """One file of rows serves for questions and examples: three of four rows are all the others."""
    (folder / "sums.yaml").write_text(WRITE.replace("test_split: test\n", f"{splits}num_fewshot: 3\n"))
    rows = [{"question": f"{n}+{n}=", "answer": "4"} for n in range(4)]
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    score, _ = tasks.evaluate(tasks.prepare("sums", folder), canned(""))
    asked = [[item.prompt.count(f"{n}+{n}=") for n in range(4)] for item in score.items]
    assert asked == [[1, 1, 1, 1]] * 4


def test_a_shuffled_question_is_not_among_its_own_examples(folder: Path) -> None:
    riddles(folder, "training_split: train\nnum_fewshot: 3\n", rows=4)
    score, _ = tasks.evaluate(tasks.prepare("riddles", folder), canned("yes"))
    assert [[item.prompt.count(f"Is {n}?") for n in range(4)] for item in score.items] == [[1, 1, 1, 1]] * 4


def test_examples_from_a_file_of_their_own_are_all_used(folder: Path) -> None:
    riddles(folder, "training_split: train\nnum_fewshot: 3\n", rows=3)
    with pytest.raises(
        InputError, match=r"riddles: 3 examples .* take more than 3 rows: .*riddles\.train\.jsonl"
    ):
        tasks.prepare("riddles", folder)
    (folder / "riddles.train.jsonl").write_text("".join(f'{{"question": "Was {n}?"}}\n' for n in range(3)))
    score, _ = tasks.evaluate(tasks.prepare("riddles", folder), canned("yes"))
    assert [(item.prompt.count("Was "), item.prompt.count("Is ")) for item in score.items] == [(3, 1)] * 3


def test_local_rows_of_mixed_types_are_refused_by_their_file(folder: Path) -> None:
    rows = [{"question": "1+1=", "answer": answer} for answer in ("2", 2)]
    (folder / "sums.test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(InputError, match=r"sums\.test\.jsonl: a field has values of mixed types") as caught:
        tasks.prepare("sums", folder)
    assert "IFEval" not in str(caught.value) and "\n" not in str(caught.value)


def test_a_limit_draws_rows_of_all_leaves_together(folder: Path) -> None:
    prepared = tasks.prepare("colours", folder)
    score, _ = tasks.evaluate(prepared, canned("green"), limit=3)
    assert [item.key for item in score.items] == [str(row) for row in sorted(subsample(range(5), 3))]
    whole, _ = tasks.evaluate(prepared, canned("green"), limit=9)
    assert whole.n == 5
    loaded = {**prepared.loaded["tasks"], **tasks.prepare("sums", folder).loaded["tasks"]}
    two = PreparedTask("two", {"tasks": loaded})
    rows = two.drawn(4)
    assert rows is not None and set(rows) == {"colours", "sums"}
    assert sum(map(len, rows.values())) == 4


def test_log_likelihoods_are_those_of_lm_evals_own_model(folder: Path) -> None:
    """The same requests through lm-eval's HFLM on the same weights."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    from recovery.teachers.likelihood import loglikelihoods, split_ids

    chat_model = tiny.chat_model()
    pairs = [("The leaf is", " green"), ("The sea  ", "red and blue"), ("", "alone"), ("x", " y" * 30)]
    requests = [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(pairs)]
    theirs = HFLM(pretrained=chat_model.model, tokenizer=chat_model.tokenizer, batch_size=2).loglikelihood(
        requests, disable_tqdm=True
    )
    ours = loglikelihoods(chat_model, [split_ids(chat_model, *pair) for pair in pairs])
    for (mine, top), (reference, reference_top) in zip(ours, theirs, strict=True):
        assert mine == pytest.approx(reference, rel=1e-4)
        assert top == reference_top


def test_a_checkpoint_is_asked_and_the_results_kept_in_lm_evals_layout(
    ws: Workspace, folder: Path, tmp_path: Path
) -> None:
    asked = job(ws, folder, "colours", "sums").model_copy(update={"output": str(tmp_path / "out")})
    found = evaluate(ws, asked)["scores"]
    assert found["colours"]["n"] == 5 and found["sums"]["n"] == 4
    again = evaluate(ws, asked)["scores"]
    assert again["colours"]["score"] == found["colours"]["score"]
    place = tmp_path / "out" / asked.checkpoint
    results = json.loads(sorted(place.glob("results_*.json"))[0].read_text())["results"]
    assert results["colours"]["acc,none"] == found["colours"]["score"]
    rows = sorted(place.glob("samples_colours_*.jsonl"))[0].read_text().splitlines()
    assert len(rows) == 5 and "doc_hash" in json.loads(rows[0])


def test_a_resumed_evaluation_asks_no_task_again_that_it_has_finished(
    ws: Workspace, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run asks it all the same: the questions of tasks are not known beforehand."""
    asked: list[str] = []
    ask = tasks.evaluate

    def noted(prepared: PreparedTask, *args: Any, **kwargs: Any) -> Any:
        asked.append(prepared.name)
        if asked == ["colours", "sums"]:
            raise RecoverError("out of luck")
        return ask(prepared, *args, **kwargs)

    monkeypatch.setattr(tasks, "evaluate", noted)
    wanted = job(ws, folder, "colours", "sums").model_copy(update={"reuse": True})
    with pytest.raises(RecoverError, match="out of luck"):
        evaluate(ws, wanted, key="first")
    found = evaluate(ws, wanted, key="first")["scores"]
    assert asked == ["colours", "sums", "sums"]
    assert found["colours"]["n"] == 5 and queries.RECORDED_IN not in found["colours"]
    assert evaluate(ws, wanted, key="second")["scores"]["colours"]["score"] == found["colours"]["score"]
    assert asked[3:] == ["colours", "sums"]


def test_a_model_that_thought_is_known_where_the_tasks_rules_cut_its_answers(
    ws: Workspace, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def think(answers: ModelAnswers, prompts: list[list[int]], *_: Any) -> list[list[int]]:
        return [[*b"<think>Hm.</think>4. And on"] for _ in prompts]

    monkeypatch.setattr(ModelAnswers, "_write", think)
    found = evaluate(ws, job(ws, folder, "sums", tasks_in_chat=True))
    assert found["scores"]["sums"]["mode"]["thinking"] is True
    answers = {row["response"] for row in queries.items(ws.tracker.db, found["score_ids"]["sums"])}
    assert answers == {"4"}


@pytest.mark.parametrize(("asked", "written"), [(32, 32), (100_000, 2048 - len("0+0="))])
def test_answers_are_as_long_as_the_task_and_the_model_allow(
    ws: Workspace, folder: Path, monkeypatch: pytest.MonkeyPatch, asked: int, written: int
) -> None:
    """Not as long as an answer to IFEval: a chain of thought has its answer at the end."""
    limits: list[int] = []

    def noted(answers: ModelAnswers, prompts: list[list[int]], limit: int, *_: Any) -> list[list[int]]:
        limits.append(limit)
        return [answers.chat_model.document_start("4") for _ in prompts]

    monkeypatch.setattr(ModelAnswers, "_write", noted)
    (folder / "sums.yaml").write_text(WRITE.replace("max_gen_toks: 8", f"max_gen_toks: {asked}"))
    evaluate(ws, job(ws, folder, "sums"))
    assert limits == [written]


@pytest.mark.parametrize(
    ("asked", "limit", "temperature"),
    [
        ("max_tokens: 9", 9, 0.0),
        ("max_completion_tokens: 9, temperature: 0.7", 9, 0.7),  # lm-eval samples where a temperature stands
        ("do_sample: false, temperature: 0.7", 256, 0.0),
        ("do_sample: true", 256, 1.0),
        ("do_sample: true, temperature: 0.0", 256, 0.0),
    ],
)
def test_a_tasks_own_settings_mean_what_they_mean_to_lm_eval(
    ws: Workspace,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    asked: str,
    limit: int,
    temperature: float,
) -> None:
    written: list[tuple[int, float]] = []

    def noted(answers: ModelAnswers, prompts: list[list[int]], *how: Any) -> list[list[int]]:
        written.append(how[:2])
        return [[*b"4"] for _ in prompts]

    monkeypatch.setattr(ModelAnswers, "_write", noted)
    (folder / "sums.yaml").write_text(WRITE.replace("max_gen_toks: 8, do_sample: false", asked))
    evaluate(ws, job(ws, folder, "sums"))
    assert written == [(limit, temperature)]


def test_a_task_that_samples_from_likely_tokens_alone_is_refused(ws: Workspace, folder: Path) -> None:
    sampled = "do_sample: true, temperature: 0.7, top_p: 0.9"
    (folder / "sums.yaml").write_text(WRITE.replace("do_sample: false", sampled))
    with pytest.raises(InputError, match="sums: samples with top_p, which is not done here"):
        evaluate(ws, job(ws, folder, "sums"))
    (folder / "sums.yaml").write_text(WRITE.replace("do_sample: false", "do_sample: false, top_p: 0.9"))
    evaluate(ws, job(ws, folder, "sums"))


def test_a_prompt_that_leaves_no_room_for_the_answer_loses_its_beginning(
    ws: Workspace, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As prompts of many examples: the first such prompt ended the evaluation, after its earlier suites."""
    written: list[tuple[list[list[int]], int]] = []

    def noted(answers: ModelAnswers, prompts: list[list[int]], limit: int, *_: Any) -> list[list[int]]:
        written.append((sorted(prompts, key=len), limit))
        return [[*b"4"] for _ in prompts]

    monkeypatch.setattr(ModelAnswers, "_write", noted)
    rows = [{"question": f"{'?' * length}2+2=", "answer": "4"} for length in (0, 2040, 3000)]
    (folder / "sums-data.json").write_text(json.dumps(rows))
    found = evaluate(ws, job(ws, folder, "sums", "colours"))["scores"]
    (((short, *long), limit),) = written
    assert bytes(short) == b"2+2=" and limit == 8
    assert [bytes(prompt) for prompt in long] == [b"?" * 2036 + b"2+2="] * 2
    said = "2 prompts cut at the beginning to leave room for the answer, as in lm-eval"
    assert found["sums"]["notes"] == [said] and "notes" not in found["colours"]


def test_an_answer_that_may_fill_the_context_leaves_its_prompt_half_of_it(
    ws: Workspace, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[int] = []

    def noted(answers: ModelAnswers, prompts: list[list[int]], limit: int, *_: Any) -> list[list[int]]:
        lengths.extend([*map(len, prompts), limit])
        return [[*b"4"] for _ in prompts]

    monkeypatch.setattr(ModelAnswers, "_write", noted)
    (folder / "sums.yaml").write_text(WRITE.replace("max_gen_toks: 8", "max_gen_toks: 100000"))
    (folder / "sums-data.json").write_text(json.dumps([{"question": "?" * 2000, "answer": "4"}]))
    evaluate(ws, job(ws, folder, "sums"))
    assert lengths == [1024, 1024]


def test_rows_of_a_known_task_are_enough(tmp_path: Path) -> None:
    """truthfulqa_mc2 is lm-eval's; only its rows are local. Its metric is a share, not a pass."""
    targets = {"choices": ["right", "wrong"], "labels": [1, 0]}
    rows = [{"question": f"Question {i}?", "mc1_targets": targets, "mc2_targets": targets} for i in range(3)]
    (tmp_path / "truthfulqa_mc2.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    score, _ = tasks.evaluate(tasks.prepare("truthfulqa_mc2", tmp_path), canned("right"))
    assert score.n == 3
    assert 0.99 < score.value < 1.0
    assert all(item.passed and item.detail["value"] == pytest.approx(score.value) for item in score.items)


def local_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Index the folder alone: lm-eval's own thousands of files take seconds."""
    from lm_eval.tasks import TaskManager

    own = TaskManager(include_defaults=False, include_path=str(folder))
    monkeypatch.setattr(runner, "_manager", lambda *_: own)


def test_a_groups_own_settings_hold_over_local_data(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of the whole group, of one of its tasks, and a group that is written within it."""
    (folder / "mine.yaml").write_text(
        "group: mine\ndescription: 'Look: '\n"
        "task: [{task: sums, num_fewshot: 2}, {group: inner, task: [colours]}]"
    )
    local_only(folder, monkeypatch)
    score, _ = tasks.evaluate(tasks.prepare("mine", folder), canned("green"))
    asked = {
        name: [item for item in score.items if item.detail["task"] == name] for name in ("sums", "colours")
    }
    assert [len(asked[name]) for name in asked] == [4, 5]
    assert all(item.prompt.startswith("Look: ") for item in score.items)
    assert all(item.prompt.count("=") == 3 for item in asked["sums"])


def test_a_limit_leaves_out_the_tasks_of_a_group_of_which_no_row_is_drawn(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their first rows, always the same ones, would outnumber those that are drawn."""
    (folder / "mine.yaml").write_text(
        "group: mine\ntask: [sums, colours]\naggregate_metric_list: [{metric: acc}]"
    )
    local_only(folder, monkeypatch)
    score, raw = tasks.evaluate(tasks.prepare("mine", folder), canned("green"), limit=1)
    assert (score.n, len(raw["samples"])) == (1, 1)


def test_a_group_that_loses_tasks_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """lm-eval gives all tasks of a group that is named by `task:` that group's name."""
    (folder / "inner.yaml").write_text("group: inner\ntask: [sums, colours]")
    (folder / "outer.yaml").write_text("group: outer\ntask: [{task: inner, num_fewshot: 1}]")
    local_only(folder, monkeypatch)
    with pytest.raises(InputError, match=r"outer: lm-eval loads no sums: .* name it by `group:`"):
        tasks.prepare("outer", folder)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gsm8k", "gsm8k: its data set openai/gsm8k cannot be loaded .*--tasks DIR with gsm8k.jsonl"),
    ],
)
def test_what_is_missing_is_one_line_before_anything_is_loaded(
    ws: Workspace, folder: Path, name: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Workspace, "load", lambda *_: pytest.fail("a model was loaded in vain"))
    with pytest.raises(InputError, match=said) as found:
        evaluate(ws, job(ws, folder, "sums", name))
    assert "\n" not in str(found.value)


def test_a_task_that_opens_the_answer_is_refused_for_chats_before_a_model_is_loaded(
    ws: Workspace, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "sums.yaml").write_text(f"{WRITE}gen_prefix: 'Sum:'\n")
    score, _ = tasks.evaluate(tasks.prepare("sums", folder), canned(""))
    assert {item.prompt[-4:] for item in score.items} == {"Sum:"}
    monkeypatch.setattr(Workspace, "load", lambda *_: pytest.fail("a model was loaded in vain"))
    with pytest.raises(InputError, match=r"sums: opens the answer itself, .* leave --chat away"):
        evaluate(ws, job(ws, folder, "sums", tasks_in_chat=True))


def test_in_chat_a_task_is_asked_in_turns_its_examples_included(
    ws: Workspace, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "sums.yaml").write_text(f"{WRITE}num_fewshot: 1\n")
    asked: list[Any] = []
    calls = ModelAnswers.calls

    def noted(answers: ModelAnswers) -> ModelCalls:
        own = calls(answers)

        def generate(prompts: list[Asked], limit: int, temperature: float) -> list[str]:
            asked.extend(prompts)
            return own.generate(prompts, limit, temperature)

        def loglikelihood(pairs: list[tuple[Asked, str]]) -> list[tuple[float, bool]]:
            asked.extend(context for context, _ in pairs)
            return own.loglikelihood(pairs)

        return ModelCalls(generate, loglikelihood)

    monkeypatch.setattr(ModelAnswers, "calls", noted)
    found = evaluate(ws, job(ws, folder, "colours", "sums", tasks_in_chat=True))["scores"]
    assert (found["colours"]["n"], found["sums"]["n"]) == (5, 4)
    colours, sums = asked[:10], asked[10:]  # two choices each
    things = {turn["content"] for (turn,) in colours if turn["role"] == "user"}
    assert things == {f"The {thing} is" for thing in ("leaf", "sea ", "sun", "sky", "moss")}
    questions = [f"{n}+{n}=" for n in range(4)]
    assert sorted(chat[-1]["content"] for chat in sums) == questions
    for example, answer, question in sums:
        assert (example["role"], question["role"]) == ("user", "user") and example["content"] in questions
        assert answer == {"role": "assistant", "content": "4"}


def test_in_chat_a_choice_without_its_question_is_asked_as_text(folder: Path) -> None:
    """For acc_mutual_info lm-eval asks each choice once more by itself."""
    more = "  - {metric: acc_mutual_info, aggregation: mean, higher_is_better: true}\n"
    (folder / "colours.yaml").write_text(CHOICE + more)
    contexts: list[Asked] = []

    def loglikelihood(pairs: list[tuple[Asked, str]]) -> list[tuple[float, bool]]:
        contexts.extend(context for context, _ in pairs)
        return [(-1.0 if context else -0.5, False) for context, _ in pairs]

    asked = ModelCalls(canned("").generate, loglikelihood)
    prepared = tasks.prepare("colours", folder, in_chat=True)
    score, _ = tasks.evaluate(prepared, asked, in_chat=True)
    assert (contexts.count(""), len(contexts), score.n) == (10, 20, 5)


@pytest.mark.slow
def test_no_name_that_lm_eval_knows_is_refused() -> None:
    from lm_eval.tasks import TaskManager

    names = TaskManager().all_tasks
    assert len(names) > 10_000
    task_names.require(names)


def test_a_misspelled_name_is_refused_with_the_nearest_one(folder: Path) -> None:
    task_names.require(["colours", "ifeval", "mmlu_stem"], folder)
    for name, near in (("colors", "colours"), ("ifevl", "ifeval"), ("mmlu_stm", "mmlu_stem")):
        with pytest.raises(InputError, match=f"no suite '{name}': did you mean {near}"):
            task_names.require([name], folder)


def test_a_missing_data_file_is_named(folder: Path) -> None:
    (folder / "sums-data.json").unlink()
    with pytest.raises(InputError, match=r"sums-data\.json: this data file is not there"):
        tasks.prepare("sums", folder)


# Several sampled answers -----------------------------------------------------------------------------------


def test_sampled_answers_count_together_by_prompt(tmp_path: Path) -> None:
    """Two prompts, three answers each: all of the first pass, none of the second."""
    from evals import ifeval

    row = {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
    path = tmp_path / "ifeval.jsonl"
    path.write_text("".join(json.dumps({"key": i, "prompt": f"P{i}", **row}) + "\n" for i in range(2)))

    def answer(chats: list[Any]) -> list[str]:
        return ["fine" if chat[-1]["content"] == "P0" else "a, b" for chat in chats]

    once, thrice = (ifeval.evaluate(asked, path)[0] for asked in (answer, [answer] * 3))
    assert (thrice.value, thrice.n, thrice.details["prompts"], thrice.details["samples"]) == (0.5, 6, 2, 3)
    assert thrice.items[0].detail["cluster"] == thrice.items[2].detail["cluster"] == "0"
    assert len({item.key for item in thrice.items}) == 6
    low, high = thrice.interval
    assert high - low >= once.interval[1] - once.interval[0]  # three copies of an answer tell nothing new
    assert set(once.details["by_family"]) == {"punctuation"}


def test_samples_differ_and_are_the_same_again(ws: Workspace, tmp_path: Path) -> None:
    probes = tmp_path / "probes.jsonl"
    probes.write_text(json.dumps({"id": "a", "prompt": "Where?", "answer": "Oslo"}) + "\n")
    asked = job(ws, tmp_path, "knowledge", probes=str(probes), samples=4)
    first = ws.tracker.db
    one, other = (evaluate(ws, asked)["score_ids"]["knowledge"] for _ in range(2))
    answers = [[row["response"] for row in queries.items(first, number)] for number in (one, other)]
    assert answers[0] == answers[1]
    assert len(set(answers[0])) == 4
