"""Every row of the table through the one loop; what belongs to whom; the same numbers after a kill."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from recovery import distributed
from recovery.batches.rollouts import Rollouts
from recovery.errors import InputError
from recovery.methods import table
from recovery.methods.method import Method
from recovery.methods.table import METHODS, with_dials
from recovery.models.chat_model import ChatModel
from recovery.objective.objective import Objective
from recovery.storage.training_state import TrainState
from recovery.teachers.contexts import Context
from recovery.teachers.teachers import CheckpointTeacher, SelfTeacher
from recovery.training.config import TrainConfig
from recovery.training.resumption import Stateful
from recovery.training.step_data import Episodes, minibatches, mix_places, step_rows
from recovery.training.token_loss import TokenLoss
from recovery.training.trainer import train
from recovery.training.updater import Microbatch
from tests.support import tiny
from tests.support.episodes import (
    PROMPTS,
    SECRET,
    STEP,
    Listener,
    Row,
    episodes,
    parts,
)
from tests.support.present import present
from tests.support.watched_state import WatchedState


def trained(
    method: Method, *, steps: int = 2, state: TrainState | None = None, die_after: int | None = None
) -> tuple[Episodes, dict[str, torch.Tensor], list[dict[str, float]]]:
    student, seen = tiny.chat_model(seed=1), []
    made = episodes(method, student)

    def after(step: int) -> None:
        if step == die_after:
            raise KeyboardInterrupt

    config = TrainConfig(steps=steps, learning_rate=1e-3, seed=4, save_every=1)
    loss = TokenLoss(Objective(method, student.stop_ids))
    try:
        train(
            student,
            made,
            loss,
            config,
            state=WatchedState(state.root, after) if state else None,
            on_metrics=lambda _, m: seen.append(m),
        )
    except KeyboardInterrupt:
        assert die_after
    return made, {name: p.detach().clone() for name, p in student.model.named_parameters()}, seen


def test_the_tokens_of_a_step_are_told_while_its_answers_are_written() -> None:
    made, told = episodes(METHODS["opd"], tiny.chat_model(seed=1)), []
    made.on_tokens = lambda step, tokens: told.append((step, tokens))
    list(made.updates(3))
    assert {step for step, _ in told} == {3}
    assert max(tokens for _, tokens in told) == made.tokens_sampled > 0


@pytest.mark.parametrize("name", METHODS)
def test_every_row_of_the_table_trains(name: str) -> None:
    made, weights, seen = trained(METHODS[name])
    start = tiny.model(seed=1).state_dict()
    assert any(not torch.equal(weights[key], start[key]) for key in weights)
    assert len(seen) == 2 and all(metrics["tokens"] > 0 and metrics["grad_norm"] > 0 for metrics in seen)
    method = METHODS[name]
    assert ("reward" in seen[0]) == method.needs_rewards
    assert ("response_tokens" in seen[0]) == (method.state_kind not in ("data", "teacher"))
    assert (made.tokens_scored > 0) == (method.scores != "none" or method.anchor_beta > 0)
    assert (made.tokens_sampled > 0) == (method.state_kind != "data")


@pytest.mark.parametrize(("name", "readers"), [("asft", 1), ("opd", 1), ("opd-anchored", 2)])
def test_the_tokens_that_all_processes_score_are_counted(
    name: str, readers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process counts them all, whichever it scores itself; teacher and anchor each read every token."""
    monkeypatch.setattr(distributed, "mine", lambda count, _: list(range(0, count, 2)))
    method = with_dials("opd", {"anchor_beta": 0.1}) if name == "opd-anchored" else METHODS[name]
    made = episodes(method, tiny.chat_model(seed=1), step=replace(STEP, microbatch_tokens=1))
    tokens = sum(part.rollouts.n_tokens for part in parts(made))
    assert made.tokens_scored == readers * tokens > 0


def test_each_of_several_processes_trains_on_a_part_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """However large a microbatch may be: the first one had all answers. Several updates stay as they are."""

    def found(processes: int, minibatches: int = 1) -> list[Microbatch]:
        monkeypatch.setattr(distributed, "world", lambda: processes)
        method = with_dials("opd", {"minibatches": minibatches})
        step = replace(STEP, prompts_per_step=4, microbatch_tokens=16384)
        return parts(episodes(method, tiny.chat_model(seed=1), step=step))

    alone, divided = found(1), found(4)
    assert len(alone) == len(found(4, minibatches=2)) == 1 and len(divided) >= 4
    whole, together = (
        sorted(row for part in one for row in part.rollouts.tokens_BT[part.rollouts.attention_BT].tolist())
        for one in (alone, divided)
    )
    assert whole == together
    own = [part for part in divided if part.signals.scores is not None]
    assert 1 <= len(own) <= len(divided) / 2


@pytest.mark.parametrize("name", ["opd", "sft"])
def test_no_microbatch_holds_rows_on_both_sides_of_a_boundary(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model in shards ended at the first one that did."""
    step = replace(STEP, prompts_per_step=5, microbatch_tokens=16384)

    def found(boundary: float) -> list[Rollouts]:
        monkeypatch.setattr(distributed, "boundary", lambda model: boundary)
        made = parts(episodes(METHODS[name], tiny.chat_model(seed=1), step=step))
        return [part.rollouts for part in made]

    (whole,) = found(math.inf)
    shortest = int(whole.lengths_B.min())
    within, beyond = found(shortest)
    assert int(within.lengths_B.max()) == shortest < int(beyond.lengths_B.min())
    assert sorted([*within.responses(), *beyond.responses()]) == sorted(whole.responses())


@pytest.mark.parametrize(
    ("lengths", "processes", "most", "busiest"),
    [
        ([600] * 16, 4, 16384, 4 * 600),
        ([600] * 20, 4, 2500, 6 * 600),  # four rows to a microbatch would be five of these, two for the first
        ([10] * 7 + [1000], 8, 16384, 1000),
        ([600] * 3, 4, 16384, 600),
        ([600] * 16, 1, 16384, 16 * 600),
    ],
)
def test_the_busiest_of_several_processes_reads_least(
    lengths: list[int], processes: int, most: int, busiest: int
) -> None:
    rows = Rollouts.from_dialogues([([1] * length, [True] * length) for length in lengths], pad_id=258)
    read = [part.tokens_BT.numel() for part in rows.split(rows.limit_over(processes, most))]
    assert max(sum(read[first::processes]) for first in range(processes)) == busiest
    assert max(read) <= most and len(read) >= min(processes, len(lengths))


@pytest.mark.parametrize("name", [name for name, row in METHODS.items() if row.context != "none"])
def test_the_student_never_sees_the_context(name: str) -> None:
    """Neither in what it is asked nor in what it is trained on; the teacher does."""
    student = tiny.chat_model(seed=1)
    listener = Listener(student)
    made = episodes(METHODS[name], student, sampler=listener)
    secret = student.text_ids(SECRET)

    def holds(tokens: list[int]) -> bool:
        return any(tokens[i : i + len(secret)] == secret for i in range(len(tokens)))

    trained_on = [row for updates in made.updates(1) for part in updates for row in part.rollouts.prompts()]
    assert trained_on and not any(map(holds, [*trained_on, *listener.asked]))
    if METHODS[name].context != "demonstrations":
        assert all(holds(made.views.teacher(row)) for row in range(len(PROMPTS)))
    assert all(made.views.teacher(row) != made.views.student(row) for row in range(len(PROMPTS)))


def test_a_method_of_ones_own_is_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Method("mine", "mix:0.25", "forward_kl", "self-ema", "hints", "", "a test's own", lam=1.0, ema=0.5)
    monkeypatch.setitem(METHODS, "mine", row)
    made, weights, seen = trained(table.get("mine"))
    assert isinstance(made, Stateful) and len(seen) == 2
    assert not torch.equal(weights["model.norm.weight"], tiny.model(seed=1).model.norm.weight)


@pytest.mark.parametrize("name", ["sdft", "opd-sampled", "rft", "gkd", "minillm", "opd-continue"])
def test_a_killed_training_goes_on_bitwise(name: str, tmp_path: Path) -> None:
    """What comes back from the disk is enough: the moving average, the draws, the positions, the mix."""
    _, weights, seen = trained(METHODS[name], steps=4)
    state = TrainState(tmp_path)
    trained(METHODS[name], steps=4, state=state, die_after=2)
    torch.manual_seed(99)
    _, again, rest = trained(METHODS[name], steps=4, state=state)
    assert len(rest) == 2
    assert all(torch.equal(weights[key], again[key]) for key in weights)
    assert [m["loss"] for m in rest] == [m["loss"] for m in seen[2:]]


def test_only_a_moving_average_is_carried_from_step_to_step() -> None:
    assert isinstance(episodes(METHODS["sdft"], tiny.chat_model()), Stateful)
    assert not any(
        isinstance(episodes(METHODS[name], tiny.chat_model()), Stateful) for name in ("opd", "opsd")
    )


def test_the_moving_average_follows_each_step() -> None:
    made, weights, _ = trained(with_dials("sdft", {"ema": 0.75}), steps=1)
    start, name = tiny.model(seed=1).state_dict()["model.norm.weight"], "model.norm.weight"
    assert isinstance(made.teacher, SelfTeacher)
    followed = made.teacher.chat_model.model.get_parameter(name)
    torch.testing.assert_close(followed, 0.75 * start + 0.25 * weights[name])


def test_rewards_become_advantages_by_hand() -> None:
    """Rewards 1 0 0 at the first prompt and 1 1 1 at the second: 2/3 -1/3 -1/3 and 0 0 0, on every token."""
    given = iter([1.0, 0.0, 0.0, 1.0, 1.0, 1.0])
    method = with_dials("rl", {"group_size": 3, "epochs": 1})
    made = episodes(
        method,
        tiny.chat_model(seed=1),
        reward=lambda *_: next(given),
        step=replace(STEP, samples_per_prompt=1),
    )
    rollouts = made.with_advantages(made.produce(made.draw(1)))
    gains = [2 / 3, -1 / 3, -1 / 3, 0, 0, 0]
    assert present(rollouts.rewards_B).tolist() == pytest.approx(gains)
    assert made.metrics()["reward"] == pytest.approx(4 / 6)
    (part,) = made.score(rollouts)
    rows = list(zip(present(part.rollouts.rewards_B).tolist(), part.rollouts.responses(), strict=True))
    expected = [gain for gain, answer in rows for _ in answer]
    assert sorted(gain for gain, _ in rows) == pytest.approx(sorted(gains))
    assert present(part.signals.advantages_N).tolist() == pytest.approx(expected)
    assert torch.equal(present(part.signals.behaviour_N), part.rollouts.logprobs_N)


def test_a_row_s_weight_is_that_of_its_tokens_by_hand() -> None:
    """Answers of 2 and 3 targets, weights 1 and 0.2: (sum of the first + a fifth of the second) / 2.6."""
    student = tiny.chat_model(seed=1)
    pairs = [
        Row([{"role": "user", "content": "?"}], {"response": text}) for text in ("a", "bc")
    ]  # each with its stop token
    alone = []
    for pair in pairs:
        (part,) = parts(episodes(with_dials("sft", {}), student, prompts=[], pairs=[pair]))
        alone.append(loss_of(student, part))
    assert [tokens for _, tokens in alone] == [2.0, 3.0]
    made = episodes(with_dials("sft", {}), student, prompts=[], pairs=pairs, weights=[1.0, 0.2])
    (both,) = parts(made)
    value, tokens = loss_of(student, both)
    assert tokens == pytest.approx(2 + 0.2 * 3)
    assert value == pytest.approx(alone[0][0] + 0.2 * alone[1][0])
    even = episodes(with_dials("sft", {}), student, prompts=[], pairs=pairs, weights=[1.0, 1.0])
    assert parts(even)[0].signals.weights_N is None
    with pytest.raises(InputError, match="2 rows need as many weights"):
        episodes(with_dials("sft", {}), student, prompts=[], pairs=pairs, weights=[1.0])


def loss_of(student: ChatModel, part: Microbatch) -> tuple[float, float]:
    with torch.no_grad():
        found = TokenLoss(Objective(with_dials("sft", {}), student.stop_ids))(student.model, part)
    return float(found.value), found.tokens


@pytest.mark.parametrize("name", METHODS)
def test_weights_reach_the_objective_whatever_the_method(name: str) -> None:
    """Every counted token of a row has the row's weight, wherever its microbatch put it."""
    weights = [1.0, 0.2, 0.5, 0.25, 0.75] * 2
    made = episodes(METHODS[name], tiny.chat_model(seed=1), weights=weights)
    found = [part for step in (1, 2) for part in parts(made, step)]
    assert found
    for part in found:
        rows = part.rollouts.index_B[part.rollouts.rows_N].tolist()
        assert present(part.signals.weights_N).tolist() == pytest.approx([weights[row] for row in rows])


def test_a_reward_reads_the_answer_and_its_row() -> None:
    seen: list[tuple[str, dict[str, Any]]] = []

    def judge(response: str, item: dict[str, Any]) -> float:
        seen.append((response, item))
        return 1.0

    made = episodes(METHODS["rft"], tiny.chat_model(seed=1), reward=judge)
    kept = made.produce(made.draw(1))
    assert len(kept) == len(seen) == 8 and made.metrics()["kept_share"] == 1.0
    rows, answers = kept.index_B.tolist(), [made.student.text(answer) for answer in kept.responses()]
    asked = [PROMPTS[row].messages[-1]["content"] for row in rows]
    items = [{**PROMPTS[row].fields, "prompt": text} for row, text in zip(rows, asked, strict=True)]
    assert seen == list(zip(answers, items, strict=True))


def test_a_reward_reads_no_thinking() -> None:
    seen: list[str] = []

    def judge(response: str, _: Any) -> float:
        seen.append(response)
        return 0.0

    made = episodes(METHODS["rft"], tiny.chat_model(seed=1), reward=judge)
    answers = [list(b"<think>12?</think>\n7"), list(b"<think>12")]
    logprobs = [[0.0] * len(answer) for answer in answers]
    rollouts = Rollouts.from_samples([[1], [1]], answers, logprobs, [True, False], 258)
    made.rewards(replace(rollouts, index_B=torch.tensor([0, 1])))
    assert seen == ["7", ""]


def test_where_nothing_is_kept_nothing_is_learned() -> None:
    made = episodes(METHODS["rft"], tiny.chat_model(seed=1), reward=lambda *_: 0.0)
    assert list(made.updates(1)) == []
    assert made.metrics()["kept_share"] == 0.0 and made.metrics()["reward"] == 0.0
    scoring = replace(METHODS["rft"], signal="forward_kl", teacher="base")
    assert list(episodes(scoring, tiny.chat_model(seed=1), reward=lambda *_: 0.0).updates(1)) == []


def test_each_microbatch_has_what_its_method_asks() -> None:
    wanted = {
        "sft": set(),
        "asft": {"anchor"},
        "seqkd": set(),
        "opd-continue": set(),
        "rft": {"behaviour_N"},
        "opd": {"scores", "behaviour_N"},
        "gkd": {"scores", "behaviour_N"},
        "minillm": {"scores", "behaviour_N", "rows_N"},
        "rl": {"behaviour_N", "advantages_N"},
        "opd-reward": {"scores", "behaviour_N", "advantages_N"},
    }
    for name, signals in wanted.items():
        found = parts(episodes(METHODS[name], tiny.chat_model(seed=1)))
        assert found
        for part in found:
            assert {key for key, value in vars(part.signals).items() if value is not None} == signals


def test_several_epochs_go_over_the_same_microbatches() -> None:
    method = with_dials("opd-sampled", {"epochs": 3, "minibatches": 2})
    updates = list(
        episodes(method, tiny.chat_model(seed=1), step=replace(STEP, microbatch_tokens=1)).updates(1)
    )
    assert [len(update) for update in updates] == [2, 2] * 3
    assert updates[0] == updates[2] == updates[4]
    assert list(minibatches([], 2)) == []


def test_draws_take_every_row_once_before_any_again() -> None:
    pool = range(10, 15)
    rows = [row for step in (1, 2, 3, 4, 5) for row in step_rows(pool, 2, step, "s")]
    assert sorted(rows[:5]) == sorted(rows[5:]) == list(pool)
    assert rows[:5] != rows[5:]
    assert rows == [row for step in (1, 2, 3, 4, 5) for row in step_rows(pool, 2, step, "s")]
    assert sorted(step_rows(pool, 99, 7, "s")) == list(pool)
    assert step_rows([], 3, 1, "s") == []


@pytest.mark.parametrize(
    ("share", "own"), [(0.5, [2, 2, 2]), (0.3, [1, 1, 1]), (0.4, [1, 2, 1]), (0.2, [0, 1, 1])]
)
def test_a_mix_holds_its_share_over_the_steps(share: float, own: list[int]) -> None:
    for step, count in enumerate(own, 1):
        assert [len(places) for places in mix_places(share, 4, step)] == [count, 4 - count]


def test_a_mix_takes_every_row_once_before_any_again() -> None:
    """Of 4 answers a step the student writes one, and 3 are read: in 10 steps two to each of 5 prompts, and
    each of 5 pairs 6 times."""
    method = with_dials("gkd", {"states": "mix:0.25"})
    made = episodes(method, tiny.chat_model(seed=1))
    steps = [made.draw(step) for step in range(1, 11)]
    assert [(len(step.rows), len(step.data)) for step in steps] == [(1, 3)] * 10
    assert sorted(row for step in steps for row in step.rows) == sorted([*range(5)] * 2)
    pairs = [row for step in steps for row in step.data]
    assert [sorted(pairs[first : first + 5]) for first in range(0, 30, 5)] == [[*range(5, 10)]] * 6
    again = episodes(method, tiny.chat_model(seed=1)).draw(7)
    assert (again.rows, again.data) == (steps[6].rows, steps[6].data)


def test_a_step_depends_on_its_seed_and_number_alone() -> None:
    def tokens(made: Episodes, step: int) -> list[list[int]]:
        return [row for part in parts(made, step) for row in part.rollouts.tokens_BT.tolist()]

    student = tiny.chat_model(seed=1)
    one, other = episodes(METHODS["opd"], student), episodes(METHODS["opd"], student)
    tokens(one, 1)
    assert tokens(one, 2) == tokens(other, 2)
    assert tokens(other, 2) != tokens(other, 3)
    assert tokens(other, 2) != tokens(episodes(METHODS["opd"], student, seed=5), 2)
    drawn_with = {
        made.draw(step).params.seed
        for made in (one, episodes(METHODS["opd"], student, seed=5))
        for step in (1, 2, 3)
    }
    assert len(drawn_with) == 6  # else all steps draw their tokens with the same numbers


LACKS = [
    ("opd", {"teacher": None}, "needs a teacher"),
    ("rl", {"reward": None}, "needs a reward"),
    ("asft", {"anchor": None}, "needs an anchor"),
    ("opcd", {"context": None}, "needs system to show"),
    ("sft", {"pairs": []}, "needs pairs"),
    ("gkd", {"pairs": [Row(PROMPTS[0].messages)]}, "needs pairs"),
    ("opd", {"prompts": []}, "needs prompts"),
    ("opcd", {"context": Context("system")}, "nothing to show"),
]


@pytest.mark.parametrize(("name", "changes", "message"), LACKS)
def test_what_is_missing_is_said_before_the_work(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        episodes(METHODS[name], tiny.chat_model(), **changes)


def test_every_row_is_rendered_before_the_work() -> None:
    student = tiny.chat_model()
    refusing = "{%- if messages[0]['content'] == 'no' %}{{ raise_exception('refused') }}{%- endif %}"
    student.tokenizer.chat_template = refusing + tiny.TEMPLATE
    rows = [Row([{"role": "user", "content": f"number {n}"}]) for n in range(80)]
    rows[71] = Row([{"role": "user", "content": "no"}])
    with pytest.raises(InputError, match="1 of 80 rows cannot be rendered"):
        episodes(METHODS["opd"], student, prompts=rows, pairs=[])


def test_data_alone_need_no_prompts() -> None:
    (part,) = parts(episodes(METHODS["sft"], tiny.chat_model(), prompts=[]))
    assert len(part.rollouts) == 4


def test_teachers_scores_fit_the_tokens_whatever_they_saw() -> None:
    """With a context, the scores of a token are the teacher's after its own prompt."""
    student = tiny.chat_model(seed=1)
    made = episodes(METHODS["opsd"], student, step=replace(STEP, microbatch_tokens=60))
    for part in parts(made):
        scores = present(part.signals.scores)
        found = present(scores.head)(present(scores.hidden_ND)).log_softmax(-1)
        torch.testing.assert_close(found, torch.cat(list(read_alone(made, part))), atol=1e-4, rtol=0)


@torch.no_grad()
def read_alone(made: Episodes, part: Microbatch) -> Iterator[torch.Tensor]:
    assert isinstance(made.teacher, CheckpointTeacher)
    for row, answer in zip(part.rollouts.index_B.tolist(), part.rollouts.responses(), strict=True):
        ids = made.views.teacher(row)
        logits = made.teacher.chat_model.model(torch.tensor([ids + answer])).logits[0]
        yield logits[len(ids) - 1 : -1].log_softmax(-1)
