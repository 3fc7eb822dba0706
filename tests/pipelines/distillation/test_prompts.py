"""Recovery prompts: read from any of their sources, refused by line, and never those of the evaluation."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.distillation.leaks import drop_leaks, normalised
from pipelines.distillation.prompts import Prompt, read_prompts
from recovery.errors import InputError


def prompt(text: str) -> Prompt:
    return Prompt([{"role": "user", "content": text}])


def test_a_prompt_a_line(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_bytes("\ufeffFirst, say hello.\r\n\n  Second \u2028 one  \n".encode())
    assert [p.text for p in read_prompts(str(path))] == ["First, say hello.", "Second \u2028 one"]


def test_json_lines_keep_every_other_field(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "Sum 1 and 2.", "answer": "3", "route": "math"}\n\n"Only a text"\n')
    first, second = read_prompts(str(path))
    assert (first.messages, first.fields) == (
        [{"role": "user", "content": "Sum 1 and 2."}],
        {"answer": "3", "route": "math"},
    )
    assert second == prompt("Only a text")


def test_a_json_list_is_read_as_a_whole(tmp_path):
    path = tmp_path / "prompts.json"
    path.write_text(json.dumps([{"prompt": "One"}, "Two"], indent=2))
    assert [p.text for p in read_prompts(str(path))] == ["One", "Two"]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])).filter(str.strip), min_size=1, max_size=6))
def test_json_lines_hold_any_text(tmp_path_factory, texts):
    """Unicode's other line ends (U+2028, U+0085, ...) may stand inside a JSON string."""
    path = tmp_path_factory.mktemp("p") / "prompts.jsonl"
    lines = (json.dumps({"prompt": text}, ensure_ascii=False) + "\n" for text in texts)
    path.write_text("".join(lines), encoding="utf-8", newline="\n")
    assert [p.text for p in read_prompts(str(path))] == texts


def test_messages_are_cut_before_the_first_answer(tmp_path):
    path = tmp_path / "prompts.jsonl"
    system, user = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}
    rest = [{"role": "assistant", "content": "Hello"}, {"role": "user", "content": "Bye"}]
    path.write_text(json.dumps({"messages": [system, user, *rest], "id": 7}) + "\n")
    (found,) = read_prompts(str(path))
    assert found.messages == [system, user]
    assert found.text == "Be brief.\nHi"
    assert found.fields["id"] == 7


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"prompt": "cut', r":2: not JSON"),
        ("[1, 2]", r":2: expected an object"),
        ("3", r":2: expected an object"),
        ('{"text": "wrong name"}', r':2: expected a "prompt" text or "messages" with a user turn'),
        ('{"prompt": ""}', r":2: expected"),
        ('{"prompt": 5}', r":2: expected"),
        ('{"messages": "text"}', r":2: expected"),
        ('{"messages": []}', r":2: expected"),
        ('{"messages": [{"role": "assistant", "content": "Hello"}]}', r":2: expected"),
        ('{"messages": [{"role": "user", "content": ["parts"]}]}', r":2: expected"),
        ('{"messages": [{"role": "user", "content": "  "}]}', r":2: expected"),
    ],
)
def test_a_wrong_line_is_named_by_its_number(tmp_path, line, said):
    path = tmp_path / "prompts.jsonl"
    path.write_text(f"\n{line}\n")
    with pytest.raises(InputError, match=said) as refused:
        read_prompts(str(path))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("missing.jsonl", None, "cannot be read"),
        ("empty.jsonl", b"\n\n", "holds no prompt"),
        ("empty.json", b"[]", "holds no prompt"),
        ("latin.txt", "Zürich".encode("latin-1"), "cannot be read as UTF-8"),
    ],
)
def test_a_file_without_prompts_is_refused(tmp_path, name, data, said):
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=said):
        read_prompts(str(tmp_path / name))


def test_the_microworlds_own_prompts_hang_on_the_seed():
    first, again, other = (read_prompts("microworld", seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert {p.fields["kind"] for p in first} == {"instruction", "question"}


@pytest.mark.parametrize("source", ["hub:", "hub:name", "hub:name:train", "hub:a:b:c:d", "hub::train:text"])
def test_a_hub_source_needs_all_its_parts(source):
    with pytest.raises(InputError, match="expected hub:NAME:SPLIT:FIELD"):
        read_prompts(source)


class Rows(list):
    """What a streamed data set can do."""

    def shuffle(self, seed: int, buffer_size: int) -> Rows:
        return Rows(self[seed:] + self[:seed])

    def take(self, count: int) -> Rows:
        return Rows(self[:count])


def test_a_hub_data_set_is_read_by_field_and_seed(monkeypatch):
    import datasets

    asked = []
    rows = Rows({"text": text, "n": 1} for text in ("a", "", "c"))
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: asked.append((a, k)) or rows)
    assert [p.text for p in read_prompts("hub:owner/name:train:text", seed=2)] == ["c", "a"]
    assert asked == [(("owner/name",), {"split": "train", "streaming": True})]
    with pytest.raises(InputError, match="no row of 'n' holds a prompt"):
        read_prompts("hub:owner/name:train:n")


def test_a_hub_data_set_out_of_reach_is_one_line(monkeypatch):
    import datasets

    def refuse(*_: object, **__: object) -> None:
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    with pytest.raises(InputError, match=r"cannot be loaded \(ConnectionError\)") as refused:
        read_prompts("hub:owner/name:train:text")
    assert "\n" not in str(refused.value)


QUESTION = "Write a short poem about the sea without commas"  # nine words


@pytest.mark.parametrize(
    ("text", "leaks"),
    [
        (QUESTION, True),
        (QUESTION.upper() + "!", True),
        (f"Please help me. {QUESTION}. Thank you.", True),
        (QUESTION.replace("sea", "moon"), False),
        (QUESTION.rsplit(" ", 1)[0], False),
        ("Name a color", True),
        ("Name a color that you like", False),
    ],
)
def test_an_evaluation_prompt_leaks_as_itself_and_long_ones_inside_others(text, leaks):
    kept, dropped = drop_leaks([prompt(text), prompt("Something else")], [QUESTION, "Name a color."])
    assert dropped == leaks
    assert [p.text for p in kept] == ([] if leaks else [text]) + ["Something else"]


words = st.sampled_from(list("abcdefgh"))
sentences = st.lists(words, min_size=1, max_size=14).map(" ".join)


@given(st.lists(sentences, max_size=6), st.lists(sentences, max_size=6))
def test_leaks_are_found_as_by_looking_for_each_in_each(found, evaluation):
    def leaks(text: str) -> bool:
        long = [other for other in evaluation if len(other.split()) >= 8]
        return text in evaluation or any(f" {other} " in f" {text} " for other in long)

    kept, dropped = drop_leaks([prompt(text) for text in found], evaluation)
    assert [p.text for p in kept] == [text for text in found if not leaks(text)]
    assert dropped == len(found) - len(kept)


def test_normalised_keeps_words_alone():
    assert normalised("  Don't\tSTOP — (ever)! ") == "don t stop ever"
