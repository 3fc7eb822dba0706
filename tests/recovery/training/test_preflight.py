"""Each check on a pair that is right and on the pair that it is there to refuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers.modeling_outputs import CausalLMOutputWithPast

from recovery.batches.rollouts import Rollouts
from recovery.errors import GateError
from recovery.forward.hidden_states import plain_states, unwrap
from recovery.models.adapters import LoraSpec, add_lora
from recovery.models.chat_model import ChatModel
from recovery.sampling.in_process import InProcessSampler
from recovery.sampling.protocol import SamplingParams
from recovery.training import preflight
from tests.support import tiny

PROMPTS = [[{"role": "user", "content": f"Tell me about the number {n}."}] for n in range(40)]


def found(student: ChatModel, teacher: ChatModel, **more: Any) -> dict[str, preflight.Check]:
    return {check.name: check for check in preflight.checks(student, teacher, PROMPTS, **more)}


def failures(student: ChatModel, teacher: ChatModel, **more: Any) -> list[str]:
    return [name for name, check in found(student, teacher, **more).items() if not check.ok]


def test_a_good_pair_passes_and_is_left_as_it_was() -> None:
    student, teacher = tiny.chat_model(seed=1), tiny.chat_model()
    student.model.train()
    checks = preflight.checks(student, teacher, PROMPTS)
    assert [check.name for check in checks if not check.ok] == []
    assert {check.name for check in checks} == {
        "vocabulary",
        "prompt ids",
        "stop tokens",
        "turn end",
        "vocabulary size",
        "student head",
        "teacher head",
        "stop mass",
        "student's stops",
        "self-KL",
        "sampler log-probs",
        "whole distribution",
    }
    preflight.require(checks)
    assert student.model.training
    assert not teacher.model.training
    assert all(p.requires_grad for p in student.model.parameters())


def test_it_reports_the_tokens_that_it_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "MOST_PROMPTS", 4)
    monkeypatch.setattr(preflight, "NEW_TOKENS", 8)
    seen: list[tuple[int, int]] = []
    checks = preflight.checks(
        tiny.chat_model(seed=1),
        tiny.chat_model(),
        PROMPTS,
        on_tokens=lambda done, most: seen.append((done, most)),
    )
    preflight.require(checks)
    assert seen == sorted(seen)
    assert {most for _, most in seen} == {64}  # teacher and student, four answers of eight tokens each
    assert 32 < seen[-1][0] <= 64


def test_another_tokenizer() -> None:
    teacher = tiny.chat_model()
    teacher.tokenizer.add_tokens(["<extra>"])
    check = found(tiny.chat_model(), teacher)["vocabulary"]
    assert not check.ok
    assert "'<extra>': id None for the student, 259 for the teacher" in check.detail


def test_other_template_arguments() -> None:
    teacher = tiny.chat_model(template_args={"enable_thinking": False})
    check = found(tiny.chat_model(), teacher)["prompt ids"]
    assert not check.ok
    assert "student '', teacher '<think>" in check.detail


def test_other_stop_tokens() -> None:
    teacher = tiny.chat_model()
    teacher.stop_ids = (257,)
    assert failures(tiny.chat_model(), teacher) == ["stop tokens"]


def test_a_turn_end_that_does_not_stop() -> None:
    student, teacher = tiny.chat_model(), tiny.chat_model()
    student.stop_ids = teacher.stop_ids = (258,)
    check = found(student, teacher)["turn end"]
    assert not check.ok
    assert "ends a turn with 257, which is not among [258]" in check.detail


def test_one_prompt_among_many_that_the_template_refuses() -> None:
    student, teacher = tiny.chat_model(), tiny.chat_model()
    refusing = "{%- if messages[0]['content'] == 'no' %}{{ raise_exception('refused') }}{%- endif %}"
    for chat in (student, teacher):
        chat.tokenizer.chat_template = refusing + tiny.TEMPLATE
    late = [*PROMPTS, [{"role": "user", "content": "no"}]]
    checks = {check.name: check for check in preflight.checks(student, teacher, late)}
    assert not checks["prompt ids"].ok
    assert "1 of 41 prompts cannot be rendered, first prompt 40" in checks["prompt ids"].detail


def counted(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """Count how many prompts each chat model encodes, by its id."""
    calls: dict[int, int] = {}
    encode = ChatModel.prompt_ids

    def count(chat: ChatModel, messages: Any) -> list[int]:
        calls[id(chat)] = calls.get(id(chat), 0) + 1
        return encode(chat, messages)

    monkeypatch.setattr(ChatModel, "prompt_ids", count)
    return calls


def test_each_model_encodes_a_prompt_once(monkeypatch: pytest.MonkeyPatch) -> None:
    student, teacher = tiny.chat_model(), tiny.chat_model()
    calls = counted(monkeypatch)
    assert preflight.prompt_ids(student, teacher, PROMPTS).ok
    assert calls == {id(student): len(PROMPTS), id(teacher): len(PROMPTS)}


def test_a_teacher_with_the_students_encoder_encodes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    student = tiny.chat_model()
    calls = counted(monkeypatch)
    for teacher in (student, replace(student, template_args={})):
        assert preflight.prompt_ids(student, teacher, PROMPTS).ok
    assert calls == {id(student): 2 * len(PROMPTS)}
    thinking = replace(student, template_args={"enable_thinking": False})
    assert not preflight.prompt_ids(student, thinking, PROMPTS).ok


def test_a_prompt_that_the_teacher_alone_refuses_is_named() -> None:
    student, teacher = tiny.chat_model(), tiny.chat_model()
    teacher.tokenizer.chat_template = "{{ raise_exception('no') if '7' in messages[0]['content'] }}" + (
        tiny.TEMPLATE
    )
    check = preflight.prompt_ids(student, teacher, PROMPTS)
    assert "4 of 40 prompts cannot be rendered, first prompt 7" in check.detail


def test_a_head_too_small_for_the_tokenizer() -> None:
    small = tiny.chat_model()
    small.model.resize_token_embeddings(258)
    assert "vocabulary size" in failures(tiny.chat_model(), small)


def test_a_control_token_that_nothing_gives_needs_no_row() -> None:
    """Gemma 3's text models have no row for the token of an image, which their tokenizer knows."""
    pair = [tiny.chat_model(vocab_size=258, pad_token_id=0) for _ in range(2)]
    check = preflight.padded_vocabulary(*pair)
    assert check.ok and check.detail == "head rows: student 258, teacher 258; the tokenizer needs 258"
    smaller = [tiny.chat_model(vocab_size=257, pad_token_id=0) for _ in range(2)]
    assert not preflight.padded_vocabulary(*smaller).ok  # <|im_end|>, which the template writes


def test_padded_vocabularies_pass() -> None:
    padded = tiny.chat_model(vocab_size=272)
    assert failures(tiny.chat_model(), padded) == []


def test_a_head_that_does_more_than_the_loss_knows() -> None:
    student = tiny.chat_model()
    student.model.register_forward_hook(lambda module, args, out: replace_logits(out))
    assert failures(student, tiny.chat_model()) == ["student head"]


def replace_logits(out: CausalLMOutputWithPast) -> CausalLMOutputWithPast:
    out.logits = out.logits * 1.5
    return out


def ending_with(stop: int) -> ChatModel:
    """A model that gives one stop token about a third of the probability, everywhere."""
    chat_model = tiny.chat_model(tie_word_embeddings=False)
    head = chat_model.model.lm_head
    with torch.no_grad():
        head.weight.zero_()
        chat_model.model.lm_head = torch.nn.Linear(head.in_features, head.out_features)
        chat_model.model.lm_head.weight.zero_()
        chat_model.model.lm_head.bias.zero_()[stop] = 5.0
    return chat_model


TURN_END, DOCUMENT_END = 257, 258  # both are stop tokens; the template writes the first


def test_a_teacher_that_ends_its_turns_otherwise_than_the_template() -> None:
    checks = found(ending_with(TURN_END), ending_with(DOCUMENT_END))
    assert not checks["stop mass"].ok
    assert "teacher 257: 0.0025, 258: 0.3" in checks["stop mass"].detail
    assert failures(ending_with(TURN_END), ending_with(TURN_END)) == []


def test_a_student_that_learned_to_end_turns_as_documents_end_is_there_to_be_recovered() -> None:
    checks = found(ending_with(DOCUMENT_END), ending_with(TURN_END))
    assert all(check.ok for check in checks.values())
    assert "training will teach the student" in checks["stop mass"].detail


def test_a_student_whose_template_ends_turns_otherwise_is_no_damage() -> None:
    student = ending_with(DOCUMENT_END)
    rollouts = InProcessSampler(student).sample([[5]] * 40, SamplingParams(max_new_tokens=32))
    template = tiny.TEMPLATE.replace(tiny.IM_END, tiny.END_OF_TEXT)
    student.tokenizer.chat_template = template
    other = ChatModel.of(student.model, student.tokenizer, path="tiny")
    assert other.encoder.turn_end_id == DOCUMENT_END
    with torch.no_grad():
        assert not preflight.same_stops("stops", other, ending_with(TURN_END), rollouts).ok


def test_the_head_is_compared_on_the_shortest_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "NEW_TOKENS", 2)
    teacher = ending_with(TURN_END)
    prompts = [[{"role": "user", "content": text}] for text in ("long " * 40, "hi", "a longer one")]
    read: list[int] = []

    def watch(module: Any, args: Any, given: dict[str, Any]) -> None:
        if "input_ids" in given:
            read.append(given["input_ids"].numel())

    teacher.model.register_forward_pre_hook(watch, with_kwargs=True)
    checks = preflight.checks(ending_with(TURN_END), teacher, prompts)
    assert [check.name for check in checks if not check.ok] == []
    assert read[0] == len(teacher.prompt_ids(prompts[1]))


def test_answers_are_read_in_passes_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = tiny.chat_model(seed=1), tiny.chat_model()
    answers = InProcessSampler(pair[1]).sample([[5] * n for n in range(20, 60)], SamplingParams(64))
    with torch.no_grad():
        at_once = preflight.same_stops("stops", *pair, answers)
        monkeypatch.setattr(preflight, "MAX_TOKENS", 128)
        sizes: list[int] = []

        def watched(model: Any, tokens_BT: torch.Tensor, *more: Any) -> torch.Tensor:
            sizes.append(tokens_BT.numel())
            return plain_states(unwrap(model), tokens_BT, *more)

        monkeypatch.setattr(preflight, "hidden_states", watched)
        assert preflight.same_stops("stops", *pair, answers) == at_once
        assert preflight.teacher_is_itself(pair[1], answers).ok
    assert len(sizes) > 2 and max(sizes) <= 128


def adapter_ending_with(adapted_stop: int, base_stop: int) -> ChatModel:
    """An adapter under which every turn ends with one stop token, on a base that ends it with another.

    The base's states are one constant vector; the adapter turns it to the first axis, which the head reads.
    """
    chat_model = tiny.chat_model(tie_word_embeddings=False)
    core = chat_model.model
    with torch.no_grad():
        core.model.embed_tokens.weight.fill_(1.0)
        for layer in core.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        core.lm_head = torch.nn.Linear(32, 259)
        core.lm_head.weight.zero_()
        core.lm_head.bias.zero_()[base_stop] = 5.0
        core.lm_head.weight[adapted_stop, 0], core.lm_head.weight[adapted_stop, 1] = 2.0, -2.0
    add_lora(chat_model, LoraSpec(rank=1))
    down = unwrap(chat_model.model).model.layers[0].mlp.down_proj
    inputs: list[torch.Tensor] = []
    hook = down.register_forward_hook(lambda module, args, output: inputs.append(args[0]))
    with torch.no_grad():
        plain_states(unwrap(chat_model.model), torch.tensor([[5]]))
        hook.remove()
        reach = down.lora_A["default"](inputs[0]).item() * down.scaling["default"]
        down.lora_B["default"].weight.zero_()[0] = 1000.0 / reach
    return chat_model


def test_an_adapter_is_compared_with_the_model_below_it() -> None:
    """The student teaches nothing to itself, so that its chat model stands for the base: adapter off."""
    student = adapter_ending_with(TURN_END, base_stop=DOCUMENT_END)
    checks = found(student, student)
    assert not checks["stop mass"].ok and not checks["student's stops"].ok
    assert "teacher 257: 0.0025, 258: 0.3" in checks["stop mass"].detail
    assert checks["self-KL"].ok
    same = adapter_ending_with(TURN_END, base_stop=TURN_END)
    assert failures(same, same) == []


class Truncated:
    """Leaves out the unlikely half of the tokens, and reports the whole distribution's log-probabilities."""

    def __init__(self, chat_model: ChatModel) -> None:
        self.chat_model = chat_model

    def sample(self, prompts: list[list[int]], params: SamplingParams) -> Rollouts:
        rollouts = InProcessSampler(self.chat_model).sample(prompts, replace(params, temperature=0.5))
        seen = preflight.TokenMoments.of(self.chat_model, rollouts)
        logprobs_BT = torch.zeros_like(rollouts.logprobs_BT)
        logprobs_BT[rollouts.mask_BT] = seen.logprob_N
        return replace(rollouts, logprobs_BT=logprobs_BT)


class Stale:
    """Samples from weights that are not the student's."""

    def __init__(self, chat_model: ChatModel) -> None:
        self.sample = InProcessSampler(tiny.chat_model(seed=7)).sample


@pytest.mark.parametrize(
    ("sampler", "expected"),
    [(Truncated, ["whole distribution"]), (Stale, ["sampler log-probs", "whole distribution"])],
)
def test_samplers_that_are_not_the_student(sampler: Callable[[ChatModel], Any], expected: list[str]) -> None:
    student = tiny.chat_model()
    assert failures(student, tiny.chat_model(seed=1), sampler=sampler(student)) == expected


def test_bfloat16_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "MOST_PROMPTS", 8)
    monkeypatch.setattr(preflight, "NEW_TOKENS", 24)
    student, teacher = tiny.chat_model(seed=1), tiny.chat_model()
    for chat_model in (student, teacher):
        chat_model.model.to(torch.bfloat16)
    assert failures(student, teacher) == []


def test_require_says_what_failed_and_what_to_do() -> None:
    good, bad = preflight.Check("a", True, "x"), preflight.Check("b", False, "is wrong", "do this")
    preflight.require([good])
    with pytest.raises(GateError, match=r"^preflight: b: is wrong: do this$"):
        preflight.require([good, bad])
    with pytest.raises(GateError, match=r"do this \(and 1 more: c\)"):
        preflight.require([bad, replace(bad, name="c")])
