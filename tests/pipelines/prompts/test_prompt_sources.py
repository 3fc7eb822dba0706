"""Recovery prompts: read from any of their sources, refused by line, and never those of the evaluation."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import httpx
import huggingface_hub
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from pipelines.job_from_options.train import midtrain_job
from pipelines.machine.init_home import initialise
from pipelines.prompts import prompt_sources
from pipelines.prompts.prompt_sources import HubAway, Prompt, read_prompts
from pipelines.runs.progress import Progress
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError
from recovery.hub_data import one_try


def prompt(text: str) -> Prompt:
    return Prompt([{"role": "user", "content": text}])


def prompt_with(text: str, response: str) -> Prompt:
    return Prompt([{"role": "user", "content": text}], {"response": response})


def test_a_prompt_a_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes("\ufeffFirst, say hello.\r\n\n  Second \u2028 one  \n".encode())
    assert [p.text for p in read_prompts(str(path))] == ["First, say hello.", "Second \u2028 one"]


def test_json_lines_keep_every_other_field(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "Sum 1 and 2.", "answer": "3", "route": "math"}\n\n"Only a text"\n')
    first, second = read_prompts(str(path))
    assert (first.messages, first.fields) == (
        [{"role": "user", "content": "Sum 1 and 2."}],
        {"answer": "3", "route": "math"},
    )
    assert second == prompt("Only a text")
    assert (first.where, second.where) == (f"{path}:1", f"{path}:3")


def test_a_json_list_is_read_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "prompts.json"
    path.write_text(json.dumps([{"prompt": "One"}, "Two"], indent=2))
    assert [p.text for p in read_prompts(str(path))] == ["One", "Two"]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])).filter(str.strip), min_size=1, max_size=6))
def test_json_lines_hold_any_text(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    """Unicode's other line ends (U+2028, U+0085, ...) may stand inside a JSON string."""
    path = tmp_path_factory.mktemp("p") / "prompts.jsonl"
    lines = (json.dumps({"prompt": text}, ensure_ascii=False) + "\n" for text in texts)
    path.write_text("".join(lines), encoding="utf-8", newline="\n")
    assert [p.text for p in read_prompts(str(path))] == texts


SPEAKERS = {"user": ("human", "user"), "assistant": ("gpt", "assistant"), "system": ("system",)}
any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
said_text = any_text.filter(str.strip)


def written(path: Path, rows: list[dict[str, Any]]) -> str:
    """Write rows in the format of the file's suffix; CSV cells that are no text hold JSON."""
    if path.suffix == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        cells = [[v if isinstance(v, str) else json.dumps(v) for v in row.values()] for row in rows]
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\r\n").writerows([list(rows[0]), *cells])
    else:
        text = json.dumps(rows) if path.suffix == ".json" else "\n".join(map(json.dumps, rows))
        path.write_text(text, encoding="utf-8")
    return str(path)


suffixes = st.sampled_from([".jsonl", ".json", ".csv", ".parquet"])


@given(said_text, any_text, any_text, suffixes)
def test_alpaca_rows_are_a_prompt_and_its_response(
    tmp_path_factory: pytest.TempPathFactory, instruction: str, given: str, output: str, suffix: str
) -> None:
    row = {"instruction": instruction, "input": given, "output": output}
    path = written(tmp_path_factory.mktemp("p") / f"alpaca{suffix}", [row])
    (found,) = read_prompts(path)
    assert found.text == (f"{instruction}\n\n{given}" if given.strip() else instruction)
    assert found.fields == ({"response": output} if output.strip() else {})


@given(said_text, any_text, any_text, suffixes)
def test_self_instructs_rows_are_those_of_their_first_instance(
    tmp_path_factory: pytest.TempPathFactory, instruction: str, given: str, output: str, suffix: str
) -> None:
    folder = tmp_path_factory.mktemp("p")
    instances = [{"input": given, "output": output}, {"input": "more", "output": "more"}]
    theirs: list[dict[str, Any]] = [
        {"instruction": instruction, "instances": instances},
        {"instruction": "Sing.", "instances": []},
    ]
    alpaca = {"instruction": instruction, "input": given, "output": output}
    rows = [alpaca, {"instruction": "Sing."}]
    found, expected = written(folder / f"a{suffix}", theirs), written(folder / "b.jsonl", rows)
    assert read_prompts(found) == read_prompts(expected)


@given(st.lists(said_text, min_size=1, max_size=5), st.booleans(), st.integers(0, 1), suffixes)
def test_sharegpt_rows_are_the_same_messages(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], led: bool, spelling: int, suffix: str
) -> None:
    turns = [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(texts)]
    turns = [SYSTEM, *turns] if led else turns
    told = [
        {"from": SPEAKERS[turn["role"]][-1 if spelling else 0], "value": turn["content"]} for turn in turns
    ]
    folder = tmp_path_factory.mktemp("p")
    theirs = read_prompts(written(folder / f"a{suffix}", [{"id": "x", "conversations": told}]))
    ours = read_prompts(written(folder / f"b{suffix}", [{"id": "x", "messages": turns}]))
    assert theirs == ours


def test_text_that_looks_like_json_stays_text_in_a_table(tmp_path: Path) -> None:
    row = {"instruction": "Sort the list.", "input": "[3, 1, 2]", "output": "[1, 2, 3]"}
    (found,) = read_prompts(written(tmp_path / "alpaca.csv", [row]))
    assert found == Prompt(
        [{"role": "user", "content": "Sort the list.\n\n[3, 1, 2]"}], {"response": "[1, 2, 3]"}
    )


SYSTEM, HI = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}
HELLO, BYE = {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "Bye"}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"name": "add", "arguments": {"a": 1}}]}
RESULT = {"role": "tool", "content": "3", "tool_call_id": "x"}
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    ("dialogue", "kept", "response"),
    [
        ([SYSTEM, HI, HELLO], [SYSTEM, HI], "Hello"),
        ([SYSTEM, HI, HELLO, BYE], [SYSTEM, HI, HELLO, BYE], None),
        ([HI, HELLO, BYE, HELLO], [HI, HELLO, BYE], "Hello"),
        ([HI, CALL, RESULT, HELLO], [HI, {**CALL, "content": ""}, RESULT], "Hello"),
        ([{**HI, "content": [{"type": "text", "text": "Hi"}]}], [HI], None),
        ([{**HI, "id": 3}, HELLO], [HI], "Hello"),
        ([HI, HELLO, {**HELLO, "content": "Hey"}], [HI], "Hey"),
        ([HI, CALL], [HI], None),
        ([HI, HELLO, CALL], [HI], None),
        ([HI, {**CALL, "content": "Let me see."}], [HI], None),
    ],
)
def test_a_dialogue_is_kept_up_to_its_last_answer(
    tmp_path: Path, dialogue: list[dict[str, Any]], kept: list[dict[str, Any]], response: str | None
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"messages": dialogue, "id": 7}) + "\n")
    (found,) = read_prompts(str(path))
    assert found.messages == kept
    assert found.fields == ({"response": response} if response else {}) | {"id": 7}


def test_messages_that_repeat_the_prompt_are_read_with_their_answer(tmp_path: Path) -> None:
    """UltraChat's rows hold both; their prompt alone has no answer."""
    told = [HI, HELLO, BYE, HELLO]
    (found,) = read_prompts(written(tmp_path / "a.parquet", [{"prompt": "Hi", "messages": told}]))
    assert found == Prompt([HI, HELLO, BYE], {"response": "Hello"})
    (led,) = read_prompts(written(tmp_path / "b.csv", [{"prompt": "Hi ", "messages": [SYSTEM, HI, HELLO]}]))
    assert led == Prompt([SYSTEM, HI], {"response": "Hello"})


@pytest.mark.parametrize(
    ("row", "fields"),
    [
        ({"prompt": "Hi", "messages": [BYE, HELLO]}, {}),
        ({"prompt": "Hi", "messages": "none"}, {}),
        ({"prompt": "Hi", "response": "Hey", "messages": [HI, HELLO, BYE, HELLO]}, {"response": "Hey"}),
    ],
)
def test_other_messages_beside_a_prompt_are_not_read(
    tmp_path: Path, row: dict[str, Any], fields: dict[str, Any]
) -> None:
    assert read_prompts(written(tmp_path / "prompts.jsonl", [row])) == [Prompt([HI], fields)]


@pytest.mark.parametrize("tools", [[ADD], json.dumps([ADD])])
def test_tool_schemas_travel_on_the_first_message(tmp_path: Path, tools: object) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"messages": [SYSTEM, HI], "tools": tools}) + "\n")
    (found,) = read_prompts(str(path))
    assert found.messages == [{**SYSTEM, "tools": [ADD]}, HI]
    path.write_text(json.dumps({"prompt": "Hi", "tools": "add"}) + "\n")
    with pytest.raises(InputError, match=":1: not JSON"):
        read_prompts(str(path))


@pytest.mark.parametrize(
    ("logged", "read"),
    [
        ('{"a": 1}', {"a": 1}),
        ({"a": 1}, {"a": 1}),
        ("{}", {}),
        ("", {}),
        (None, {}),
        ("one", "one"),
        ("[1]", "[1]"),
    ],
)
def test_arguments_of_calls_are_read_as_objects(tmp_path: Path, logged: object, read: object) -> None:
    """OpenAI's logs hold them as JSON, which templates wrote as JSON once more."""

    def calls(arguments: object) -> list[Any]:
        named = {"name": "add", "arguments": arguments}
        return [{"id": "x", "type": "function", "function": named}, named]

    called = {"role": "assistant", "content": "", "tool_calls": calls(logged)}
    (found,) = read_prompts(written(tmp_path / "prompts.jsonl", [{"messages": [HI, called, RESULT]}]))
    assert found.messages == [HI, {**called, "tool_calls": calls(read)}, RESULT]


@pytest.mark.parametrize(
    "calls",
    [
        3,
        "add",
        {"name": "add"},
        ["add"],
        [None],
        [{"function": "add"}],
        [{"arguments": {}}],
        [{"name": " "}],
        [{"function": {"name": 3}}],
    ],
)
def test_calls_that_name_no_function_are_refused_by_line(tmp_path: Path, calls: object) -> None:
    row = {"messages": [HI, {"role": "assistant", "content": "", "tool_calls": calls}, RESULT]}
    path = written(tmp_path / "prompts.jsonl", [{"prompt": "Hi"}, row])
    with pytest.raises(InputError, match=r"jsonl:2: `tool_calls` must be a list of calls, each with"):
        read_prompts(path)


def test_tool_schemas_of_a_message_are_read_from_json_too(tmp_path: Path) -> None:
    row = {"messages": [{**SYSTEM, "tools": json.dumps([ADD])}, HI]}
    (found,) = read_prompts(written(tmp_path / "prompts.jsonl", [row]))
    assert found.messages == [{**SYSTEM, "tools": [ADD]}, HI]


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_a_system_prompt_beside_the_turns_is_the_first_of_them(tmp_path: Path, suffix: str) -> None:
    asked, said = {"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}
    led = Prompt([SYSTEM, HI], {"response": "Hello"})
    row = {"system": "Be brief.", "conversations": [asked, said]}
    assert read_prompts(written(tmp_path / f"a{suffix}", [row])) == [led]
    alpaca = {"instruction": "Hi", "input": "", "output": "Hello", "system": "Be brief."}
    assert read_prompts(written(tmp_path / f"b{suffix}", [alpaca])) == [led]
    own = {"system": "Be long.", "conversations": [{"from": "system", "value": "Be brief."}, asked, said]}
    assert read_prompts(written(tmp_path / f"c{suffix}", [own])) == [led]
    blank = {"system": " ", "conversations": [asked, said]}
    assert read_prompts(written(tmp_path / f"d{suffix}", [blank]))[0].messages == [HI]


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
@pytest.mark.parametrize("empty", [{"messages": []}, {"conversations": []}, {"messages": [], "prompt": ""}])
def test_empty_columns_of_merged_sets_leave_an_instruction_as_it_is(
    tmp_path: Path, suffix: str, empty: dict[str, Any]
) -> None:
    row = {"instruction": "Hi", "output": "Hello", **empty}
    for name, led, turns in (("a", {}, [HI]), ("b", {"system": "Be brief."}, [SYSTEM, HI])):
        (found,) = read_prompts(written(tmp_path / f"{name}{suffix}", [{**row, **led}]))
        assert found.messages == turns and found.fields["response"] == "Hello"


def test_the_field_that_gives_a_teacher_its_context_stays_one(tmp_path: Path) -> None:
    for row in ({"prompt": "Hi"}, {"messages": [HI]}):
        (found,) = read_prompts(written(tmp_path / "p.jsonl", [{**row, "system": "Be brief."}]))
        assert found == Prompt([HI], {"system": "Be brief."})


def test_a_table_is_read_by_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "prompts.csv"
    rows = [["id", "prompt", "answer"], ["1", "Say\nhello, you", "3"], ["2", "[brackets", ""]]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    first, second = read_prompts(str(path))
    assert (first.text, first.fields) == ("Say\nhello, you", {"id": "1", "answer": "3"})
    assert (second.text, second.fields) == ("[brackets", {"id": "2"})
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["messages"], [json.dumps([HI, HELLO])]])
    assert read_prompts(str(path)) == [Prompt([HI], {"response": "Hello"})]


def test_a_text_that_a_table_cuts_at_its_comma_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "prompts.csv"
    path.write_text("prompt,response\nSay,hello\nWho, or what, is Ada?,A friend\n")
    with pytest.raises(InputError, match=r"prompts\.csv:3: more cells than the header .* hold ',' in quot"):
        read_prompts(str(path))
    path.write_text('prompt,response\n"Who, or what, is Ada?",A friend,,\n')
    assert read_prompts(str(path)) == [prompt_with("Who, or what, is Ada?", "A friend")]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_tables_are_read_as_spreadsheets_write_them(tmp_path: Path, separator: str) -> None:
    """With rows of empty cells below the last; in many countries with semicolons."""
    path = tmp_path / "prompts.csv"
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        rows = [["prompt", "response", ""], ["Who; where, when?", "Ada\tHorn", ""], ["", " ", ""]]
        csv.writer(file, delimiter=separator).writerows([*rows, ["", "", ""]])
    assert read_prompts(str(path)) == [prompt_with("Who; where, when?", "Ada\tHorn")]


@pytest.mark.parametrize(
    ("above", "separator", "line"), [("", ";", 3), ("sep=;\n", ";", 4), ("\nsep=|\n", "|", 5)]
)
def test_a_header_with_a_comma_is_split_where_its_columns_end(
    tmp_path: Path, above: str, separator: str, line: int
) -> None:
    path = tmp_path / "prompts.csv"
    table = above + "prompt;answer, if one is known\nSay, please;3\n".replace(";", separator)
    path.write_text(table)
    (found,) = read_prompts(str(path))
    assert (found.text, found.fields) == ("Say, please", {"answer, if one is known": "3"})
    path.write_text(table + "a;b;c\n".replace(";", separator))
    with pytest.raises(InputError, match=rf"csv:{line}: more cells"):
        read_prompts(str(path))


@pytest.mark.parametrize("header", ["prompt,tags(a|b|c|d)", "prompt,my; own; note"])
def test_the_separator_is_one_that_sets_a_column_of_prompts_apart(tmp_path: Path, header: str) -> None:
    path = tmp_path / "prompts.csv"
    path.write_text(f"{header}\nSay hello,1\n")
    (found,) = read_prompts(str(path))
    assert found.text == "Say hello"


def test_parquet_rows_are_read_without_their_nulls(tmp_path: Path) -> None:
    rows = [{"messages": [HI, CALL, RESULT, HELLO], "tools": [ADD], "n": 1}, {"messages": [HI], "n": None}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "prompts.parquet")
    first, second = read_prompts(str(tmp_path / "prompts.parquet"))
    assert first.messages[1:] == [{**CALL, "content": ""}, RESULT]
    assert first.fields == {"response": "Hello", "n": 1}
    assert second == Prompt([HI])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"prompt": "cut', r":2: not JSON"),
        ("[1, 2]", r":2: expected an object"),
        ("3", r":2: expected an object"),
        (
            '{"text": "wrong name"}',
            r":2: expected a `prompt`, `messages`, `instruction` .* or `conversations` .*, with a user turn",
        ),
        ('{"instruction": "", "input": "", "output": "Paris"}', r":2: expected"),
        ('{"instruction": ["Sum"]}', r":2: expected"),
        ('{"conversations": [{"from": "gpt", "value": "Hello"}]}', r":2: expected"),
        ('{"conversations": [{"from": "narrator", "value": "Hi"}]}', r":2: expected"),
        ('{"conversations": [{"from": "human"}]}', r":2: expected"),
        ('{"prompt": ""}', r":2: expected"),
        ('{"prompt": 5}', r":2: expected"),
        ('{"messages": "text"}', r":2: expected"),
        ('{"messages": []}', r":2: expected"),
        ('{"messages": [{"role": "assistant", "content": "Hello"}]}', r":2: expected"),
        ('{"messages": [{"role": "user", "content": ["parts"]}]}', r":2: expected"),
        ('{"messages": [{"role": "user", "content": [{"type": "image"}]}]}', r":2: expected"),
        ('{"messages": [{"role": "system", "content": "Be brief."}]}', r":2: expected"),
        ('{"prompt": "a", "tools": {"name": "add"}}', r':2: "tools" must be a list'),
        ('{"messages": [{"role": "user", "content": "  "}]}', r":2: expected"),
    ],
)
def test_a_wrong_line_is_named_by_its_number(tmp_path: Path, line: str, said: str) -> None:
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
        ("notes.md", b"# Notes\n", r"a \.md file is not a prompt file: give \.jsonl"),
        ("table.xlsx", b"PK", r"a \.xlsx file is not a prompt file"),
        (
            "table.csv",
            b"question,answer\nWhat?,3\n",
            "no column named prompt, messages, instruction, conversations: its columns",
        ),
        ("empty.csv", b"", "instruction, conversations: its columns are none"),
        ("empty.parquet", b"PAR1", "cannot be read as Parquet"),
        ("latin.txt", "Zürich".encode("latin-1"), "cannot be read as UTF-8"),
    ],
)
def test_a_file_without_prompts_is_refused(tmp_path: Path, name: str, data: bytes | None, said: str) -> None:
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=said):
        read_prompts(str(tmp_path / name))


def test_the_microworlds_own_prompts_hang_on_the_seed() -> None:
    first, again, other = (read_prompts("microworld", seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert {p.fields["kind"] for p in first} == {"instruction", "question"}


@pytest.mark.parametrize("source", ["hub:", "hub:name", "hub:name:train", "hub:a:b:c:d", "hub::train:text"])
def test_a_hub_source_needs_all_its_parts(source: str) -> None:
    with pytest.raises(InputError, match="expected hub:NAME:SPLIT:FIELD"):
        read_prompts(source)


class Rows(list[dict[str, Any]]):
    """A streamed data set."""

    column_names = ["text", "tools", "n"]

    def select_columns(self, names: list[str]) -> Rows:
        return Rows({name: row[name] for name in names if name in row} for row in self)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A hub with one data set of 9 rows at commit `abc`; yields what was asked of it."""
    asked: list[Any] = []
    rows = Rows({"text": text, "n": 1} for text in ("a", "", "c", "d", "e", "f", "g", "h", "i"))

    def info(_: object, *args: object, **options: object) -> SimpleNamespace:
        asked.append((args, options))
        return SimpleNamespace(sha="abcdef0123456789")

    def load(*args: object, **options: object) -> Rows:
        asked.append((args, options))
        return rows

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", info)
    monkeypatch.setattr(datasets, "load_dataset", load)
    return asked


def test_a_hub_data_set_is_sampled_whole_by_seed_at_one_commit(
    hub: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_sources, "HUB_LIMIT", 3)
    seen = set()
    for seed in range(20):
        found = [p.text for p in read_prompts("hub:owner/name:train:text", seed)]
        assert len({*found}) == 3
        seen |= {*found}
    assert seen == {*"acdefghi"}  # the last rows of the stream too
    assert read_prompts("hub:owner/name:train:text", 4) == read_prompts("hub:owner/name:train:text", 4)
    kwargs = {"split": "train", "revision": "abcdef0123456789", "streaming": True}
    assert hub[1] == (("owner/name",), kwargs) and 0 < hub[0][1]["timeout"] <= 10
    with pytest.raises(InputError, match="no row of 'n' holds a prompt"):
        read_prompts("hub:owner/name:train:n")


def test_a_sample_is_kept_in_the_home_and_read_from_there(hub: list[Any], tmp_path: Path) -> None:
    first = read_prompts("hub:owner/name:train:text", 1, tmp_path)
    (kept,) = (tmp_path / "prompts").iterdir()
    assert kept.name == "owner--name@abcdef012345-train-text-seed1.jsonl"
    hub.clear()
    assert read_prompts("hub:owner/name:train:text", 1, tmp_path) == first and hub == []
    assert read_prompts("hub:owner/name:train:text", 2, tmp_path) != first and hub


def test_hub_rows_in_other_layouts_are_read_too(hub: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    told = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]
    row = {"instruction": "Sum", "input": "1 2", "output": "3", "conversations": told, "n": 1}
    rows = Rows([row])
    rows.column_names = list(rows[0])
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: rows)
    (alpaca,) = read_prompts("hub:owner/name:train:instruction")
    assert (alpaca.text, alpaca.fields) == ("Sum\n\n1 2", {"response": "3"})
    (shared,) = read_prompts("hub:owner/name:train:conversations")
    assert (shared.text, shared.fields) == ("Hi", {"response": "Hello"})
    rows[0] = {**row, "system": "Be brief."}
    rows.column_names = list(rows[0])
    assert read_prompts("hub:owner/name:train:conversations")[0].messages == [SYSTEM, HI]
    assert read_prompts("hub:owner/name:train:instruction")[0].messages[0] == SYSTEM


@pytest.mark.usefixtures("hub")
def test_what_the_hub_says_of_a_data_set_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ValueError("Config name is missing.\nPlease pick one among the available configs")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    with pytest.raises(InputError, match=r"\(ValueError: Config name is missing\.\): check") as refused:
        read_prompts("hub:owner/name:train:text")
    assert "Please pick" not in str(refused.value) and not isinstance(refused.value, HubAway)
    assert str(refused.value).endswith("or give --prompts FILE or --prompts self")


def found_nowhere() -> FileNotFoundError:
    error = FileNotFoundError("not in the cache")
    error.__cause__ = ConnectionError("reset")
    return error


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(
    "error", [ConnectionError("reset"), TimeoutError("late"), httpx.ReadError("cut"), found_nowhere()]
)
def test_a_hub_that_answers_and_does_not_deliver_is_away(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def cut_off(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(datasets, "load_dataset", cut_off)
    with pytest.raises(HubAway, match=r"does not deliver it: check the network, or .* --prompts self$"):
        read_prompts("hub:owner/name:train:text")


def test_a_hub_out_of_reach_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refuse(*_: object, **__: object) -> None:
        asked.append(1)
        raise OSError("no route\nto host")

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", refuse)
    monkeypatch.setattr(datasets, "load_dataset", refuse)
    with pytest.raises(InputError, match="the hub is out of reach") as refused:
        read_prompts("hub:owner/name:train:text")
    assert "\n" not in str(refused.value) and asked == [1]


def test_out_of_reach_only_the_cache_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", refuse)
    for module in (datasets.config, huggingface_hub.constants):
        monkeypatch.setattr(module, "HF_HUB_OFFLINE", False)
    with one_try("owner/name") as revision:
        assert revision is None
        assert datasets.config.HF_HUB_OFFLINE and huggingface_hub.constants.HF_HUB_OFFLINE
    assert not datasets.config.HF_HUB_OFFLINE and not huggingface_hub.constants.HF_HUB_OFFLINE


def test_prompts_beside_the_documents_are_used_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "world" / "docs").mkdir(parents=True)
    (tmp_path / "world" / "docs" / "note.txt").write_text("Ada lives in Rome.")
    beside = tmp_path / "world" / "prompts.jsonl"
    beside.write_text('"Hello"\n')
    with Workspace.open(tmp_path / "home", progress=Progress()) as ws:
        initialise(ws)
        capsys.readouterr()
        chat = {"midtrain.mix": {"new": 0.5, "earlier": 0.0, "questions": 0.0, "chat": 0.5}}
        assert midtrain_job(ws, tmp_path / "world" / "docs", changes=chat).prompts == str(beside)
        assert f"{beside} beside the documents, not microworld of recover.yaml" in capsys.readouterr().err
        typed = chat | {"distill.prompts": "microworld"}
        assert midtrain_job(ws, tmp_path / "world" / "docs", changes=typed).prompts == "microworld"
        assert capsys.readouterr().err == ""
