"""IFEval through lm-eval's own task: recorded answers, a function as the model, offline, bad files."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evals import harness, ifeval
from evals.intervals import clustered_interval, wilson_interval
from evals.scores import Score
from recovery.errors import InputError, RecoverError

REPO = Path(__file__).parents[2]
REAL_PROMPTS = REPO.parent / "shared" / "data" / "ifeval" / "input_data.jsonl"

PROMPTS = [
    ("Say hello. No commas.", ["punctuation:no_comma"], [{}], "Hello there"),
    ("Say hello. No commas please!", ["punctuation:no_comma"], [{}], "Hello, there"),
    ("All capitals.", ["change_case:english_capital"], [{}], "THIS IS AN ENGLISH SENTENCE ABOUT THE WEATHER"),
    (
        "Two bullets, quoted.",
        ["detectable_format:number_bullet_lists", "startend:quotation"],
        [{"num_bullets": 2}, {}],
        "* one\n* two",
    ),
    (
        "At least three sentences.",
        ["length_constraints:number_sentences"],
        [{"num_sentences": 3, "relation": "at least"}],
        "Dr. Smith paid 3.50 dollars. He left. So did I.",
    ),
    ("A title.", ["detectable_format:title"], [{}], "Sure!\n<<Title>>"),
]


def evaluate(*asked: Any, **options: Any) -> Score:
    score, _ = ifeval.evaluate(*asked, **options)
    return score


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    rows = [
        {"key": 100 + i, "prompt": prompt, "instruction_id_list": names, "kwargs": kwargs}
        for i, (prompt, names, kwargs, _) in enumerate(PROMPTS)
    ]
    return write(tmp_path / "prompts.jsonl", rows)


@pytest.fixture
def responses(tmp_path: Path) -> Path:
    rows = [{"prompt": prompt, "response": response} for prompt, _, _, response in PROMPTS]
    return write(tmp_path / "responses.jsonl", rows)


Chats = list[list[dict[str, str]]]
Answer = Callable[[Chats], list[str]]


def answer(chats: Chats) -> list[str]:
    known = {prompt: response for prompt, _, _, response in PROMPTS}
    return [known[chat[-1]["content"]] for chat in chats]


def by_key(score: Score) -> dict[str, bool]:
    return {item.key: item.passed for item in score.items}


def test_score_by_hand(prompts: Path, responses: Path) -> None:
    score = ifeval.score_responses(responses, prompts)
    assert by_key(score) == {"100": True, "101": False, "102": True, "103": False, "104": True, "105": True}
    assert (score.suite, score.metric, score.n) == ("ifeval", "prompt_strict", 6)
    assert score.value == pytest.approx(4 / 6)
    assert score.interval == wilson_interval(4, 6)
    assert score.details["prompt_level_strict_acc"] == pytest.approx(4 / 6)
    assert score.details["inst_level_strict_acc"] == pytest.approx(
        5 / 7
    )  # the bullets pass, the quotes do not
    assert score.details["by_instruction"]["punctuation:no_comma"] == {"passed": 1, "passed_loose": 1, "n": 2}
    assert score.details["by_family"]["detectable_format"] == {"passed": 2, "passed_loose": 2, "n": 2}
    assert score.items[3].detail["strict"] == [True, False]
    low, high = score.details["intervals"]["inst_level_strict_acc"]
    assert low < 5 / 7 < high
    json.dumps(score.as_dict())


def test_an_item_names_the_arguments_that_its_prompt_gives(prompts: Path) -> None:
    """Not those that other prompts of the file give."""
    given = [item.detail["arguments"] for item in evaluate(answer, prompts).items]
    wanted: Any = PROMPTS[4][2]
    assert given == [[{}], [{}], [{}], [{"num_bullets": 2}, {}], [wanted[0]], [{}]]


def test_loose_forgives_a_first_line(tmp_path: Path) -> None:
    row = {"key": 1, "prompt": "Quote.", "instruction_id_list": ["startend:quotation"], "kwargs": [{}]}
    score = evaluate(lambda chats: ['Sure:\n"quoted"'], write(tmp_path / "p.jsonl", [row]))
    assert not score.items[0].passed
    assert score.items[0].detail["passed_loose"]
    assert score.details["prompt_level_loose_acc"] == 1.0


def test_an_answer_of_a_thousand_brackets_is_no_json_and_ends_nothing(tmp_path: Path) -> None:
    types = ["detectable_format:json_format"]
    rows: list[dict[str, Any]] = [
        {"key": key, "prompt": f"JSON {key}.", "instruction_id_list": types, "kwargs": [{}]} for key in (1, 2)
    ]
    said = {"JSON 1.": "[" * 5000, "JSON 2.": '[{"a": 1}]'}
    asked = write(tmp_path / "p.jsonl", rows)
    score = evaluate(lambda chats: [said[chat[-1]["content"]] for chat in chats], asked)
    assert by_key(score) == {"1": False, "2": True}
    assert ifeval.followed(said["JSON 1."], "JSON 1.", types, [{}]) == 0.0


def test_a_model_and_its_recorded_answers_score_alike(prompts: Path, responses: Path) -> None:
    assert evaluate(answer, prompts) == ifeval.score_responses(responses, prompts)


def test_all_prompts_come_in_one_call_as_chats(prompts: Path) -> None:
    calls: list[list[list[dict[str, str]]]] = []

    def record(chats: list[list[dict[str, str]]]) -> list[str]:
        calls.append(chats)
        return ["x" for _ in chats]

    evaluate(record, prompts)
    assert calls == [[[{"role": "user", "content": prompt}] for prompt, *_ in PROMPTS]]


def test_a_limit_asks_the_same_sample_of_every_checkpoint(prompts: Path) -> None:
    first, second = (evaluate(lambda chats: ["x" for _ in chats], prompts, limit=4) for _ in range(2))
    assert [item.key for item in first.items] == [item.key for item in second.items]
    assert first.n == 4
    assert {item.prompt for item in first.items} <= {prompt for prompt, *_ in PROMPTS}
    assert evaluate(lambda chats: ["x" for _ in chats], prompts, limit=99).n == len(PROMPTS)


@pytest.mark.parametrize("samples", [1, 2])
def test_a_key_may_hold_the_sign_before_a_sample_s_number(tmp_path: Path, samples: int) -> None:
    """Keys such as doc#1 and doc#2 name two prompts, not two answers to one."""
    asked = {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
    rows = [{"key": f"doc#{n}", "prompt": f"Line {n}.", **asked} for n in range(4)]
    generate = [lambda chats: ["x" for _ in chats]] * samples
    score = evaluate(generate, write(tmp_path / "p.jsonl", rows))
    assert (score.details["prompts"], score.details["samples"]) == (4, samples)
    assert {item.detail["cluster"] for item in score.items} == {row["key"] for row in rows}


@pytest.mark.parametrize("samples", [1, 2])
def test_equal_prompts_count_as_one(tmp_path: Path, samples: int) -> None:
    """As of a file that was put together from two copies; without keys its rows were as many prompts."""
    asked = {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
    path = write(tmp_path / "p.jsonl", [{"prompt": f"Line {n}.", **asked} for n in range(4)] * 2)

    def generate(chats: Chats) -> list[str]:
        return ["a, b" if "0" in chat[-1]["content"] else "fine" for chat in chats]

    score = evaluate([generate] * samples, path)
    clusters = ["0", "1", "2", "3"] * 2 * samples
    assert [item.cluster for item in score.items] == clusters
    assert score.interval == clustered_interval([item.passed for item in score.items], clusters)
    assert (score.value, score.n) == (0.75, 8 * samples)
    assert (score.details["prompts"], score.details["samples"]) == (8, samples)
    assert "4 of 8 prompts repeat an earlier one: equal ones count as one" in score.details["notes"]


def test_a_generator_that_drops_an_answer_is_caught(prompts: Path) -> None:
    with pytest.raises(RecoverError, match="5 answers to 6 prompts"):
        evaluate(lambda chats: ["x"] * 5, prompts)


def test_random_state_is_left_alone(prompts: Path) -> None:
    random.seed(7)
    expected = random.Random(7).random()
    evaluate(answer, prompts)
    assert random.random() == expected


def test_the_letter_that_lm_eval_draws_for_a_published_sign_is_the_same_each_time(tmp_path: Path) -> None:
    """Published figures count these two prompts so; see `harness.PUBLISHED_SIGNS`."""
    limit = {"let_relation": "at least", "let_frequency": 4}
    rows = [
        {"key": key, "prompt": key, "instruction_id_list": [LETTERS], "kwargs": [limit | {"letter": sign}]}
        for key, sign in (("1122", "#"), ("1129", "!"))
    ]
    path = write(tmp_path / "p.jsonl", rows)

    def half(chats: Chats) -> list[str]:
        random.random()  # a generator that uses the global state must not change the scoring
        return ["abcdefghijklm " * 4 for _ in chats]

    random.seed(1)
    first = by_key(evaluate(half, path))
    random.seed(2)
    assert by_key(evaluate(half, path)) == first


@pytest.mark.parametrize(
    "thinking",
    [
        "<think>\nCommas, many, <<no title>>. * three\n* bullets\n</think>\n\n",
        "analysisIt wants bullets.assistantfinal",
    ],
)
def test_recorded_thinking_changes_no_score(
    thinking: str, prompts: Path, responses: Path, tmp_path: Path
) -> None:
    rows = [{"prompt": prompt, "response": thinking + response} for prompt, _, _, response in PROMPTS]
    thought = write(tmp_path / "thought.jsonl", rows)
    assert ifeval.score_responses(thought, prompts) == ifeval.score_responses(responses, prompts)


def test_empty_responses_fail(prompts: Path, tmp_path: Path) -> None:
    rows = [{"prompt": prompt, "response": None} for prompt, *_ in PROMPTS]
    score = ifeval.score_responses(write(tmp_path / "r.jsonl", rows), prompts)
    assert score.value == 0.0
    assert score.interval[1] > 0


def test_without_a_file_the_hubs_prompts_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked: list[str] = []

    def load(path: str, **_: object) -> dict[str, datasets.Dataset]:
        asked.append(path)
        kwargs = [{"num_words": None, "num_bullets": None}]
        row = {"key": 1000, "prompt": "Hi", "instruction_id_list": ["punctuation:no_comma"], "kwargs": kwargs}
        return {"train": datasets.Dataset.from_list([row])}

    monkeypatch.setattr(datasets, "load_dataset", load)
    score = evaluate(lambda chats: ["fine"])
    assert asked == ["google/IFEval"]
    assert by_key(score) == {"1000": True}


# --- pairing recorded responses with prompts


def test_missing_response_is_an_error(prompts: Path, tmp_path: Path) -> None:
    rows = [{"prompt": prompt, "response": "x"} for prompt, *_ in PROMPTS[1:]]
    with pytest.raises(InputError, match="no response to 1 of 6 prompts"):
        ifeval.score_responses(write(tmp_path / "r.jsonl", rows), prompts)


def test_two_responses_to_one_prompt_are_an_error(prompts: Path, responses: Path) -> None:
    responses.write_text(responses.read_text() + responses.read_text().splitlines()[0] + "\n")
    with pytest.raises(InputError, match=r"2 responses to 'Say hello\. No commas\.', asked 1 times"):
        ifeval.score_responses(responses, prompts)


def test_responses_to_other_prompts_are_left_out_with_a_note(prompts: Path, responses: Path) -> None:
    extra = json.dumps({"prompt": "Something else entirely?", "response": "y"})
    responses.write_text(responses.read_text() + extra + "\n")
    score = ifeval.score_responses(responses, prompts)
    assert score.n == 6
    assert any("1 prompt not among those asked" in note for note in score.details["notes"])


def test_one_reworded_prompt_in_a_hundred_is_paired(tmp_path: Path) -> None:
    texts = [f"Question {random.Random(i).random()}: name {i} things at least" for i in range(100)]
    rows = [
        {"key": i, "prompt": text, "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
        for i, text in enumerate(texts)
    ]
    prompts = write(tmp_path / "p.jsonl", rows)
    answers = [{"prompt": text, "response": "fine"} for text in texts]
    answers[5]["prompt"] = texts[5].replace("5 things", "five things")
    score = ifeval.score_responses(write(tmp_path / "r.jsonl", answers), prompts)
    assert score.value == 1.0
    assert any("paired with a reworded prompt" in note for note in score.details["notes"])
    answers[6]["prompt"] = texts[6].replace("6 things", "six things")
    with pytest.raises(InputError, match="no response to 2 of 100"):
        ifeval.score_responses(write(tmp_path / "r.jsonl", answers), prompts)


# --- files that can't work fail before anything is generated


def never(chats: Chats) -> list[str]:
    raise AssertionError("generated before the prompts were checked")


KEYWORDS, LANGUAGE = "keywords:existence", "language:response_language"
LETTERS, WORDS = "keywords:letter_frequency", "length_constraints:number_words"
FIRST_WORD, BULLETS = "length_constraints:nth_paragraph_first_word", "detectable_format:number_bullet_lists"
GOOD = {"key": 1, "prompt": "p", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"instruction_id_list": ["punctuation:no_coma"]}, "unknown instruction 'punctuation:no_coma'"),
        ({"kwargs": []}, "1 instructions with 0 kwargs"),
        ({"instruction_id_list": [], "kwargs": []}, "0 instructions"),
        ({"kwargs": [{"num_words": 3}]}, "num_words"),
        ({"instruction_id_list": [KEYWORDS], "kwargs": [{"keywords": ["fine", "z(x"]}]}, "subpattern"),
        ({"instruction_id_list": [KEYWORDS], "kwargs": [{"keywords": [2024]}]}, KEYWORDS),
        ({"instruction_id_list": [LANGUAGE], "kwargs": [{"language": "english"}]}, LANGUAGE),
        ({"kwargs": "none"}, "`kwargs`"),
        ({"kwargs": [0.5]}, "`kwargs` must hold an object or null"),
        ({"instruction_id_list": [["punctuation:no_comma"]]}, "`instruction_id_list` must hold texts"),
        ({"prompt": None}, "`prompt`"),
    ],
)
def test_a_malformed_prompt_is_refused_in_one_line(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        evaluate(never, write(tmp_path / "p.jsonl", [GOOD | change]))
    assert "\n" not in str(caught.value)


def test_arguments_of_mixed_types_are_refused_in_one_line(tmp_path: Path) -> None:
    rows = [GOOD | {"key": key, "kwargs": [{"num_words": key}]} for key in (1, "two")]
    with pytest.raises(InputError, match=r"mixed types .*: give `kwargs` IFEval's own types") as caught:
        evaluate(never, write(tmp_path / "p.jsonl", rows))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("instruction", "given", "message"),
    [
        (WORDS, {"num_words": 100}, "`relation` is None"),
        (WORDS, {"num_words": 0, "relation": "at least"}, "`num_words` is 0"),
        (WORDS, {"num_words": -3, "relation": "at least"}, "`num_words` is -3"),
        (BULLETS, {"num_bullets": 0}, "`num_bullets` is 0"),
        (LETTERS, {"letter": "ü", "let_frequency": 5, "let_relation": "at least"}, "`letter` is 'ü'"),
        (LETTERS, {"letter": "#", "let_frequency": 4, "let_relation": "at least"}, "`letter` is '#'"),
        (FIRST_WORD, {"num_paragraphs": 2, "nth_paragraph": 5, "first_word": "so"}, "`nth_paragraph` is 5"),
        (KEYWORDS, {}, "`keywords` is None"),
        (KEYWORDS, {"keywords": "abc"}, "`keywords` is 'abc', and must be a list"),
        ("keywords:forbidden_words", {"forbidden_words": "abc"}, "`forbidden_words` is 'abc', and must be"),
    ],
)
def test_an_argument_that_the_checker_would_not_use_is_refused(
    tmp_path: Path, instruction: str, given: dict[str, Any], message: str
) -> None:
    """In its place lm-eval's checkers draw another, and the answers would be judged by that."""
    row = GOOD | {"key": "7", "instruction_id_list": [instruction], "kwargs": [given]}
    with pytest.raises(InputError, match=rf"key 7, {instruction}: {message}"):
        evaluate(never, write(tmp_path / "p.jsonl", [GOOD, row]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no lines"),
        ("{oops\n", "not JSON"),
        ("[1]\n", "list found"),
        ("\xff", "holds no lines|not JSON"),
    ],
)
def test_a_file_that_is_no_list_of_prompts_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        evaluate(never, path)


def test_a_file_that_is_missing_or_binary_is_refused(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "none.jsonl", tmp_path / "b.jsonl", tmp_path):
        with pytest.raises(InputError, match="cannot be read"):
            evaluate(never, path)


def test_keys_pair_items_so_they_must_differ(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="key 1 occurs twice"):
        evaluate(never, write(tmp_path / "p.jsonl", [GOOD, GOOD]))


def test_a_key_that_a_database_would_refuse_is_refused_before_it_is_asked(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"prompt 1: `key` has 501 characters: give one of at most 500"):
        evaluate(never, write(tmp_path / "p.jsonl", [{**GOOD, "key": "k" * 501}]))


def test_a_file_is_read_as_it_is_now_and_its_rows_are_the_callers(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    comma = {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
    for key in ("one", "two"):
        path.write_text(json.dumps({"key": key, "prompt": f"Say {key}.", **comma}))
        for _ in range(2):
            (row,) = ifeval.rows(path)
            assert (row["key"], row["prompt"]) == (key, f"Say {key}.")
            row["instruction_id_list"].append("changed:here")
        assert ifeval.prompts(path) == [f"Say {key}."]
        score, _ = ifeval.evaluate(lambda chats: ["no"] * len(chats), path)
        assert [item.key for item in score.items] == [key]


def test_keys_may_be_absent(tmp_path: Path) -> None:
    rows = [{name: value for name, value in GOOD.items() if name != "key"} | {"prompt": p} for p in "ab"]
    assert by_key(evaluate(lambda chats: ["x", "a, b"], write(tmp_path / "p.jsonl", rows))) == {
        "0": True,
        "1": False,
    }


def test_keys_and_turns_may_be_null(tmp_path: Path) -> None:
    rows = [GOOD | {"key": None, "messages": None, "tools": None, "prompt": p} for p in "ab"]
    score = evaluate(lambda chats: ["x", "a, b"], write(tmp_path / "p.jsonl", rows))
    assert by_key(score) == {"0": True, "1": False}


# --- the real prompts

real = pytest.mark.skipif(
    not REAL_PROMPTS.exists(), reason="the 541 IFEval prompts are not beside the repository"
)


@pytest.fixture
def made_up() -> Answer:
    """Answers that pass some checks and fail others, the same every time."""
    styles = (
        str.upper,
        str.lower,
        lambda text: f'"{text}"',
        lambda text: f"<<Title>>\n{text}\n* a\n* b\n* c\nP.S. done",
    )
    text = "This answer repeats itself to be long. " * 12

    def generate(chats: list[list[dict[str, str]]]) -> list[str]:
        return [styles[len(chat[-1]["content"]) % 4](text) for chat in chats]

    return generate


@real
def test_the_541_prompts_agree_with_the_checkers_called_directly(made_up: Answer) -> None:
    score = evaluate(made_up, REAL_PROMPTS)
    assert score.n == 541
    assert sum(row["n"] for row in score.details["by_instruction"].values()) == 834
    assert len(score.details["by_instruction"]) == 25
    from lm_eval.tasks.ifeval.utils import process_results

    rows = [json.loads(line) for line in REAL_PROMPTS.read_text(encoding="utf-8").splitlines()]
    for row, item in zip(rows[::4], score.items[::4], strict=True):
        direct = process_results(row, [item.response])
        assert item.passed == direct["prompt_level_strict_acc"]
        assert item.detail["strict"] == direct["inst_level_strict_acc"]
        assert item.detail["loose"] == direct["inst_level_loose_acc"]


@real
def test_of_the_541_prompts_only_two_have_an_argument_that_is_drawn() -> None:
    rows = [json.loads(line) for line in REAL_PROMPTS.read_text(encoding="utf-8").splitlines()]
    drawn = set()
    for row in rows:
        try:
            ifeval.try_checkers(row["prompt"], row["instruction_id_list"], row["kwargs"])
        except InputError:
            letters = {given["letter"] for given in row["kwargs"] if "letter" in given}
            drawn |= {(str(row["key"]), letter) for letter in letters or {""}}
    assert drawn == harness.PUBLISHED_SIGNS == {("1122", "#"), ("1129", "!")}


@real
def test_the_541_prompts_score_the_same_twice(made_up: Answer) -> None:
    assert evaluate(made_up, REAL_PROMPTS) == evaluate(made_up, REAL_PROMPTS)


# --- alone in a process: nothing on the network, nothing on standard output, no sentence model installed

OFFLINE = """
import socket, sys
def refuse(*args, **kwargs):
    sys.stderr.write("SOCKET TRIED\\n"); raise OSError("sockets are denied")
socket.socket.connect = refuse; socket.getaddrinfo = refuse; socket.create_connection = refuse
from evals import ifeval, nltk_sentences
from recovery.errors import InputError
score = ifeval.score_responses(sys.argv[1], sys.argv[2])
assert nltk_sentences.name() == "fallback", nltk_sentences.name()
assert any("fallback" in note for note in score.details["notes"]), score.details["notes"]
assert score.value == 4 / 6, score.value
try:
    ifeval.evaluate(lambda chats: 1 / 0)
except InputError as error:
    assert "google/IFEval" in str(error) and "\\n" not in str(error), error
else:
    raise AssertionError("the hub was reached")
"""


def test_offline_without_a_sentence_model(prompts: Path, responses: Path, tmp_path: Path) -> None:
    environment = {name: os.environ[name] for name in ("PATH", "VIRTUAL_ENV") if name in os.environ}
    environment |= {"HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "NLTK_DATA": "", "PYTHONPATH": str(REPO)}
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE, str(responses), str(prompts)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert "SOCKET TRIED" not in done.stderr
    assert not list(tmp_path.rglob("*.arrow")), "a local file must not fill a data set cache"


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Dr. Smith met Mr. Jones at 3.30 p.m. in St. Louis. They talked.", 2),
        ('He said, "I am done." Then he left.', 2),
        ("It costs $3.50. Is that much? No! Fine.", 4),
        ("J. R. R. Tolkien wrote it. We read it.", 2),
        ("Wait... what is that? Nothing.", 2),
        ("1. Apples are red.\n2. Pears are green.", 4),  # as punkt_tab counts list numbers
        ("no end at all", 1),
    ],
)
def test_the_fallback_splits_like_punkt(text: str, sentences: int, monkeypatch: pytest.MonkeyPatch) -> None:
    import nltk
    from nltk.tokenize.punkt import PunktTokenizer

    from evals.nltk_sentences import SHIPPED, private_copy

    monkeypatch.setattr(nltk.data, "path", [str(private_copy(SHIPPED))])
    assert len(PunktTokenizer("english").tokenize(text)) == sentences


def test_a_model_that_others_may_write_is_read_from_a_private_copy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As in a clone made under umask 002."""
    import nltk
    from nltk.tokenize.punkt import PunktTokenizer

    from evals.nltk_sentences import SHIPPED, private_copy

    shared = shutil.copytree(SHIPPED, tmp_path / "shared")
    for path in (shared, *shared.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o666)
    before = os.umask(0)
    try:
        copy = private_copy(shared)
    finally:
        os.umask(before)
    monkeypatch.setattr(nltk.data, "path", [str(copy)])
    assert PunktTokenizer("english").tokenize("Dr. Smith came. He left.") == ["Dr. Smith came.", "He left."]


def test_importing_the_package_does_not_import_lm_eval() -> None:
    modules = "evals.statistics, evals.verdict, evals.ifeval, evals.knowledge"
    code = f"import sys, {modules}; print('lm_eval' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_rows_of_several_turns_are_sent_whole(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "look_up", "parameters": {}}}
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi, I'm Ann."},
        {"role": "assistant", "content": "Hello, Ann."},
        {"role": "user", "content": "Say my name. No commas."},
    ]
    rule = {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
    rows = [{"messages": turns, "tools": [tool], **rule}, {"prompt": "Say hello. No commas.", **rule}]
    path = write(tmp_path / "turns.jsonl", rows)
    asked: list[Any] = []

    def generate(chats: list[Any]) -> list[str]:
        asked.extend(chats)
        return ["Ann"] * len(chats)

    score = evaluate(generate, path)
    assert asked == [
        [{**turns[0], "tools": [tool]}, *turns[1:]],
        [{"role": "user", "content": rows[1]["prompt"]}],
    ]
    several, one = (item.prompt for item in score.items)
    assert "[assistant]\nHello, Ann." in several and one == rows[1]["prompt"]
    kept = write(tmp_path / "kept.jsonl", ifeval.rows(path))
    assert [row.get("messages") for row in ifeval.rows(kept)] == [asked[0], None]
    answers = write(
        tmp_path / "answers.jsonl", [{"prompt": item.prompt, "response": "x"} for item in score.items]
    )
    assert ifeval.score_responses(answers, path).value == 1
    evaluate(generate, path, limit=1)
    assert asked[2] in asked[:2]
