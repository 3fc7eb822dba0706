"""From settings to what a method is made of: data, context, reward, teachers, and what both sides read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pipelines.config import settings as config
from pipelines.config.jobs import DistillJob
from pipelines.config.overrides import changed, override
from pipelines.distill import distill
from pipelines.distillation import inputs
from pipelines.distillation.dry_run import show_prompts
from pipelines.distillation.input_checks import require_askable
from pipelines.distillation.teachers import Teachers
from pipelines.engines.engine_places import Engines
from pipelines.machine.init_home import initialise
from pipelines.microworld.world import prompt_rows
from pipelines.prompts.prompt_sources import Prompt, read_prompts
from pipelines.runs.workspace import Workspace
from recovery import distributed
from recovery.errors import InputError
from recovery.methods.table import METHODS, get, with_dials
from recovery.models.adapters import LoraSpec, add_lora
from recovery.storage.checkpoints import Checkpoint
from recovery.teachers import contexts
from recovery.teachers.teachers import AdapterOffTeacher, CheckpointTeacher, RoutedTeacher, SelfTeacher
from tests.support import tiny
from tests.support.engine_fakes import TinyEngine, serving

ROWS = [
    {"prompt": "Where does Ada live?", "response": "Ada lives in Rome.", "answer": "Rome", "route": "a"},
    {"prompt": "What is six times seven?", "answer": "42", "route": "b"},
    {"prompt": "Write about rain.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]},
    {"messages": [{"role": "user", "content": "Hello!"}, {"role": "assistant", "content": "Hi."}]},
]
PRESET = config.parse(config.preset_text("microworld"), "preset")


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return str(path)


def job(prompts: str, method: str, **settings: Any) -> DistillJob:
    named = changed(PRESET, {"distill.method": method}).distill
    chosen = override(named, {"preflight": False, **settings})
    return DistillJob(
        student="base", teacher="base", prompts=prompts, settings=chosen, evaluation=PRESET.eval
    )


def data(prompts: str, method: str, **settings: Any) -> tuple[list[str], list[str]]:
    found = inputs.read_data(job(prompts, method, **settings), get(method))
    return [contexts.prompt(row) for row in found.prompts], [
        str(contexts.response(row)) for row in found.pairs
    ]


def test_each_method_gets_the_rows_that_it_reads(prompts: str, tmp_path: Path) -> None:
    asked, answers = [contexts.prompt(row) for row in read_prompts(prompts)], ["Ada lives in Rome.", "Hi."]
    assert data(prompts, "opd") == (asked, [])
    assert data(prompts, "sft") == ([], answers)
    assert data(prompts, "gkd") == data(prompts, "sdft") == (asked, answers)
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text('{"prompt": "So?", "response": "So."}\n')
    assert data(prompts, "gkd", pairs=str(pairs)) == (asked, ["So."])
    assert data("nowhere.jsonl", "sft", pairs=str(pairs)) == ([], ["So."])
    assert data(prompts, "opd", pairs="nowhere.jsonl") == (asked, [])
    pairs.write_text('{"prompt": "So?"}\n')
    with pytest.raises(InputError, match=r"pairs.jsonl: no row has a 'response'"):
        data(prompts, "gkd", pairs=str(pairs))


def test_a_number_is_a_response_and_a_blank_or_a_list_is_none(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    answers: list[Any] = [4, 0, 2.5, "five", " ", "", None, True, ["six"]]
    rows = [{"prompt": f"What is {number}?", "response": answer} for number, answer in enumerate(answers)]
    alpaca = {"instruction": "Add one to six.", "output": 7}
    turns = [{"role": "user", "content": "Hello!"}, {"role": "assistant", "content": "Hi."}]
    more = [alpaca, {"messages": turns, "response": ""}]
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, *more]))
    kept = ["4", "0", "2.5", "five", "7", "Hi."]
    assert data(str(path), "sft") == ([], kept)
    assert data("nowhere.jsonl", "sft", pairs=str(path)) == ([], kept)
    assert "Response: 4" in seen(str(path), "sdft", str(path))
    assert "None" not in seen(str(path), "sdft", str(path), context_examples=20)


def seen(prompts: str, method: str, given: str | None, row: int = 0, **settings: Any) -> str:
    asked = job(prompts, method, context=given, **settings)
    found = inputs.read_data(asked, get(method))
    context = inputs.read_context(asked, get(method), found.pairs)
    assert context is not None
    return " | ".join(message["content"] for message in context(found.prompts[row]))


def test_a_context_is_a_text_a_file_or_the_rows_own(prompts: str, tmp_path: Path) -> None:
    text, long = tmp_path / "rules.txt", "No commas. " * 500
    text.write_text("No commas.\n")
    assert seen(prompts, "opcd", "Be brief.") == "Be brief. | Where does Ada live?"
    assert seen(prompts, "opcd", str(text)) == "No commas. | Where does Ada live?"
    assert seen(prompts, "opcd", long) == f"{long} | Where does Ada live?"
    assert seen(prompts, "opcd", "{prompt} Shout!") == "Where does Ada live? Shout!"
    assert "Rome" in seen(prompts, "opsd", None) and "Response: Hi." in seen(prompts, "sdft", None, row=3)
    examples = tmp_path / "shots.jsonl"
    examples.write_text(
        '{"prompt": "Where is Leo?", "response": "In Oslo."}\n{"prompt": "x", "response": "y"}\n'
    )
    shown = seen(prompts, "sdft", str(examples), context_examples=2)
    assert "Request: Where is Leo?\nResponse: In Oslo." in shown and "Response: y" not in shown
    for broken, message in (("missing.txt", "no such file"), (str(tmp_path / "empty.md"), "is empty")):
        (tmp_path / "empty.md").write_text(" \n")
        with pytest.raises(InputError, match=message):
            seen(prompts, "opcd", broken)


@pytest.mark.parametrize(
    "gone",
    [
        "House rules.txt",
        "RULES.TXT",
        "rules.yaml ",
        "./rules",
        "../house rules",
        "~/prompts/system.prompt",
        "/srv/rules",
    ],
)
def test_a_context_that_can_only_be_a_file_is_never_taken_for_a_text(prompts: str, gone: str) -> None:
    """Its name became the system prompt of the teacher."""
    with pytest.raises(InputError, match="there is no such file") as refused:
        seen(prompts, "opcd", gone)
    assert "\n" not in str(refused.value)
    with pytest.raises(InputError, match="there is no such file"):
        inputs.require_named(job(prompts, "opcd", context=gone).settings, get("opcd"))


@pytest.mark.parametrize(
    "text", ["Name .txt files as such.", "Answer in JSON.", "/no_think", "/no_think\nBe brief."]
)
def test_a_context_that_may_be_a_text_is_one(prompts: str, text: str) -> None:
    assert seen(prompts, "opcd", text) == f"{text} | Where does Ada live?"


def test_a_mark_before_the_text_of_a_context_is_not_part_of_it(prompts: str, tmp_path: Path) -> None:
    """Editors on Windows write it."""
    (tmp_path / "rules.txt").write_bytes(b"\xef\xbb\xbfNo commas.\r\n")
    assert seen(prompts, "opcd", str(tmp_path / "rules.txt")) == "No commas. | Where does Ada live?"


def test_the_line_of_the_method_shows_how_a_context_begins() -> None:
    shown = [contexts.Context("system", given) for given in ("Be\nbrief.", "long " * 50)]
    said = [inputs.context_in_words(context) for context in (*shown, contexts.Context("answer"), None)]
    assert said[0] == " seeing system (Be brief.)"
    assert said[1].startswith(" seeing system (long long") and len(said[1]) < 100
    assert said[2:] == [" seeing answer", ""]


def reward(prompts: str, method: str, name: str | None) -> tuple[Any, list[str]]:
    asked = job(prompts, method, reward=name)
    found, kept = inputs.read_reward(asked, get(method), inputs.read_data(asked, get(method)))
    return found, [contexts.prompt(row) for row in kept.prompts]


def test_a_pure_reward_leaves_out_what_it_cannot_judge(prompts: str) -> None:
    found, kept = reward(prompts, "rl", "exact")
    assert kept == ["Where does Ada live?", "What is six times seven?"]
    assert (found("It is 42.", ROWS[1]), found("It is 41.", ROWS[1])) == (1.0, 0.0)
    found, kept = reward(prompts, "opd-reward", "exact")
    assert len(kept) == 4 and found("whatever", ROWS[2]) == 0.0
    assert reward(prompts, "opd", "exact")[0] is None
    with pytest.raises(InputError, match="'other' is unknown"):
        reward(prompts, "rl", "other")


def test_an_answer_of_zero_is_judged(tmp_path: Path) -> None:
    path = tmp_path / "zero.jsonl"
    rows = [{"prompt": "One minus one?", "answer": 0}, {"prompt": "Who?", "answer": ""}, {"prompt": "Why?"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found, kept = reward(str(path), "rl", "exact")
    assert kept == ["One minus one?"]
    assert [found("It is 0.", row) for row in rows] == [1.0, 0.0, 0.0] and found("It is 1.", rows[0]) == 0.0


def test_the_microworlds_own_answers_earn_their_reward(tmp_path: Path) -> None:
    rows = [row for row in prompt_rows(3, 1) if row.get("instruction_id_list")][:40]
    path = tmp_path / "world.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found, kept = reward(str(path), "rft", "ifeval")
    assert len(kept) == 40
    assert all(found(str(row["response"]), row) == 1.0 for row in rows)
    two = next(row for row in rows if len(row["instruction_id_list"]) == 2)  # type: ignore[arg-type]
    assert found("", two) == 0.0


def test_instructions_are_judged_in_rows_of_messages_too(tmp_path: Path) -> None:
    turns = [
        {"role": "user", "content": "Write about rain."},
        {"role": "assistant", "content": "Rain falls."},
        {"role": "user", "content": "Again, without commas."},
    ]
    row = {"messages": turns, "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    found, kept = reward(str(path), "rl", "ifeval")
    assert kept == ["Again, without commas."]
    asked = read_prompts(str(path))[0].fields | {"prompt": kept[0]}
    assert (found("Rain falls again.", asked), found("Rain, again.", asked)) == (1.0, 0.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"kwargs": None},
        {"kwargs": []},
        {"instruction_id_list": ["made:up"]},
        {"kwargs": [{"number": 3}]},
        {"instruction_id_list": "punctuation:no_comma"},
        {"instruction_id_list": ["length_constraints:number_words"], "kwargs": [{"num_words": 9}]},
    ],
)
def test_rows_that_no_checker_can_be_built_for_are_refused_before_the_first_step(
    wrong: dict[str, Any], tmp_path: Path
) -> None:
    row = {"prompt": "Write about rain.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n" + json.dumps(row | wrong) + "\n")
    with pytest.raises(InputError, match="reward ifeval cannot check 'Write about rain") as refused:
        reward(str(path), "rl", "ifeval")
    assert "\n" not in str(refused.value)


def test_an_option_that_a_method_does_not_read_is_refused() -> None:
    inputs.refuse_ignored(get("opd"), context=None, reward=None, pairs=None, route=(), overlap="drop")
    inputs.refuse_ignored(get("sdft"), context="a", pairs="b")
    for name, option in (
        ("opd", "context"),
        ("opd", "reward"),
        ("opd", "pairs"),
        ("sdft", "route"),
        ("sft", "overlap"),
    ):
        with pytest.raises(InputError, match=f"--{option} has no effect with method '{name}'"):
            inputs.refuse_ignored(get(name), **{option: "a"})


def test_teachers_are_who_the_row_says(home: Workspace, prompts: str) -> None:
    student, base, engines = tiny.chat_model(), home.clean(), Engines(home, home.home)

    def teachers(name: str, **settings: Any) -> Teachers:
        asked = job(prompts, name, **settings)
        return Teachers(home, asked, METHODS[name], base, student, engines)

    rows = read_prompts(prompts)
    assert teachers("sft").teacher(rows) is None and teachers("opd").anchor() is None
    assert type(teachers("opd").teacher(rows)) is CheckpointTeacher
    own, average = teachers("opsd").teacher(rows), teachers("sdft").teacher(rows)
    assert isinstance(own, SelfTeacher) and own.decay is None
    assert isinstance(average, SelfTeacher) and average.decay == METHODS["sdft"].ema
    both = teachers("asft")
    assert both.anchor().chat_model is both.teacher(rows).chat_model and len(both.models) == 1  # type: ignore[union-attr]
    routed = teachers("opd-multi", routes={"a": base.id, "b": "base"}).teacher(rows)
    assert isinstance(routed, RoutedTeacher) and routed.routes == ["a", "b", "base", "base"]
    with pytest.raises(InputError, match="no teacher for route 'b'"):
        teachers("opd-multi", routes={"a": base.id}).teacher(rows)


def midtrained(home: Workspace, parent: Checkpoint, seed: int) -> Checkpoint:
    """A checkpoint that a midtraining of `parent` is recorded to have made."""
    run = home.tracker.start_run("midtrain", key=f"taught {seed}", config={"student": parent.id})
    return home.publish(tiny.chat_model(seed), parent=parent, run_id=run.id, config={})


def test_the_previous_teacher_is_what_the_last_midtraining_began_with(home: Workspace, prompts: str) -> None:
    clean, engines = home.clean(), Engines(home, home.home)
    first = midtrained(home, clean, 1)
    second = midtrained(home, first, 2)
    previous = with_dials("opd", {"teacher": "previous"})

    def teachers(student: Checkpoint) -> Teachers:
        asked = job(prompts, "opd").model_copy(update={"student": student.id})
        return Teachers(home, asked, previous, student, tiny.chat_model(), engines)

    assert [teachers(student).place for student in (first, second)] == [clean.id, first.id]
    found = teachers(second)
    assert type(found.teacher([])) is CheckpointTeacher and list(found.models) == [first.id]
    with pytest.raises(InputError, match=r"teacher=previous: .* was never midtrained"):
        teachers(clean).teacher([])


def test_an_adapter_on_the_teachers_weights_needs_no_second_model(home: Workspace, prompts: str) -> None:
    student, engines = add_lora(home.load(home.clean()), LoraSpec(rank=2)), Engines(home, home.home)
    found = Teachers(home, job(prompts, "opd"), METHODS["opd"], home.clean(), student, engines)
    assert isinstance(found.teacher([]), AdapterOffTeacher) and not found.models


def test_an_adapter_on_the_head_too_is_taught_by_the_checkpoint_itself(tmp_path: Path, prompts: str) -> None:
    with Workspace.open(tmp_path / "untied") as ws:
        initialise(ws, model=str(tiny.save(tmp_path / "model", tie_word_embeddings=False)))
        student = add_lora(ws.load(ws.clean()), LoraSpec(rank=2, targets=("q_proj", "lm_head")))
        found = Teachers(ws, job(prompts, "opd"), METHODS["opd"], ws.clean(), student, Engines(ws, ws.home))
        teacher = found.teacher([])
    assert type(teacher) is CheckpointTeacher and list(found.models.values()) == [teacher.chat_model]


@pytest.mark.parametrize(("together", "most"), [(True, 36), (False, 256)])
def test_processes_share_a_server_s_requests_where_all_of_them_ask_it(
    home: Workspace, monkeypatch: pytest.MonkeyPatch, together: bool, most: int
) -> None:
    """The first of seven processes evaluates alone, and had a seventh of the requests for it."""
    student = home.load(home.clean())
    monkeypatch.setattr(distributed, "world", lambda: 7)
    with serving(TinyEngine(student)) as server, Engines(home, home.home, together=together) as engines:
        sampler: Any = engines.sampler(server.url, student, home.clean(), follow=False)
        assert sampler.engine.most_requests == most
        assert sampler.external  # others may start it again, or send it weights


def test_both_sides_are_shown_through_the_chat_template(home: Workspace, prompts: str) -> None:
    first, second = show_prompts(home, job(prompts, "opcd", context="Be brief."), 2)
    opening = "<|im_start|>user\nWhere does Ada live?<|im_end|>\n<|im_start|>assistant\n"
    assert first["student"].startswith(opening)
    assert first["teacher"] == "<|im_start|>system\nBe brief.<|im_end|>\n" + first["student"]
    assert first["response"] == "Ada lives in Rome." and "response" not in second


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("sft", {}),
        ("opd-multi", {"routes": {"a": "base", "b": "base"}, "preflight": True}),
        ("sdft", {"lora": {"rank": 2}}),
        ("rl", {"reward": "coin.py:coin"}),
    ],
)
def test_a_row_runs_as_a_stage(
    name: str, settings: dict[str, Any], home: Workspace, prompts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(prompts).with_name("coin.py").write_text("def coin(response, item):\n    return len(response) % 2\n")
    monkeypatch.chdir(Path(prompts).parent)
    small = {"steps": 1, "prompts_per_step": 2, "max_new_tokens": 4}
    before = home.load(home.clean())
    if name == "opd-multi":  # a student unlike its teacher
        with torch.no_grad():
            before.model.get_parameter("model.norm.weight").mul_(1.5)
    student = home.publish(before, parent=home.clean(), run_id=None, config={})
    asked = job(prompts, name, **small, **settings).model_copy(update={"student": student.id})
    found = distill(home, asked)
    made = home.checkpoint(found["checkpoint"])
    assert made.parent == student.id and found["method"] == name
    assert made.kind == ("adapter" if "lora" in settings else "full")


def test_dialogues_with_tools_are_rendered_and_trained_on(tmp_path: Path) -> None:
    template = "{% if tools %}{{ tools | tojson }}{% endif %}" + tiny.TEMPLATE
    tiny.save(tmp_path / "model")
    tiny.tokenizer(chat_template=template).save_pretrained(tmp_path / "model")
    turns = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "One and two?"},
        {"role": "assistant", "tool_calls": [{"name": "add", "arguments": {"a": 1, "b": 2}}]},
        {"role": "tool", "content": "3"},
    ]
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"messages": turns, "tools": [{"name": "add"}]}) + "\n")
    with Workspace.open(tmp_path / "home") as ws:
        initialise(ws, model=str(tmp_path / "model"), preset="microworld")
        asked = job(str(path), "opd", steps=1, prompts_per_step=1, max_new_tokens=4)
        (shown,) = show_prompts(ws, asked, 1)
        assert shown["student"].startswith('[{"name": "add"}]<|im_start|>user\nHi<|im_end|>')
        assert shown["student"].endswith("<|im_start|>tool\n3<|im_end|>\n<|im_start|>assistant\n")
        assert distill(ws, asked, key=ws.new_key())["tokens"] > 0


def test_each_number_of_tool_calls_is_tried_early(tmp_path: Path) -> None:
    """Llama's template takes one: a dialogue with two ended a cycle in the middle of recovery."""
    refusal = "{{ raise_exception('only supports single tool-calls at once') }}"
    single = f"{{% for m in messages %}}{{% if m.tool_calls and m.tool_calls | length > 1 %}}{refusal}"
    tiny.save(tmp_path / "model")
    template = single + "{% endif %}{% endfor %}" + tiny.TEMPLATE
    tiny.tokenizer(chat_template=template).save_pretrained(tmp_path / "model")
    user, result = {"role": "user", "content": "One and two?"}, {"role": "tool", "content": "3"}

    def calling(times: int) -> Prompt:
        calls = [{"name": "add", "arguments": {"a": 1}}] * times
        return Prompt([user, {"role": "assistant", "content": "", "tool_calls": calls}, result])

    with Workspace.open(tmp_path / "home") as ws:
        initialise(ws, model=str(tmp_path / "model"), preset="microworld")
        require_askable(ws, "base", [calling(1), calling(1)])
        with pytest.raises(
            InputError, match=r"prompts: 'One and two.*only supports single tool-calls at once"
        ):
            require_askable(ws, "base", [calling(1), calling(2)])
