"""Find chat templates that do not know the switch by which the presets turn a model's thinking off."""

from __future__ import annotations

from recovery.errors import InputError
from recovery.models.chat_encoding import ChatEncoder
from recovery.models.thinking import mentions_thinking

SWITCH = "enable_thinking"
ASKED = [{"role": "user", "content": "a"}]


def thinking_left_on(encoder: ChatEncoder) -> str | None:
    """Say in one line that a model may think although the settings switch that off; None where it does not,
    or its template knows no thinking."""
    if encoder.template_args.get(SWITCH) is not False or _knows_switch(encoder):
        return None
    if not mentions_thinking(encoder.tokenizer.get_chat_template()):
        return None
    return (
        f"the chat template mentions thinking and does not know {SWITCH}: where the model thinks, answers "
        "that end inside it count as empty; set the template's own switch in model.template_args (GPT-OSS: "
        "reasoning_effort: low), or more eval.max_new_tokens and distill.max_new_tokens"
    )


def _knows_switch(encoder: ChatEncoder) -> bool:
    thinking = ChatEncoder(encoder.tokenizer, {**encoder.template_args, SWITCH: True})
    try:
        return thinking.prompt_ids(ASKED) != encoder.prompt_ids(ASKED)
    except InputError:  # a template that refuses to think
        return True
