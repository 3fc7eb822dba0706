"""Tiny byte-level tokenizers with the special tokens, EOS settings and chat templates of known families."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.support import tiny

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

    from recovery.models.chat_encoding import ChatEncoder
    from recovery.models.chat_model import ChatModel

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% set role = 'model' if m['role'] == 'assistant' else m['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + m['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
LLAMA = (
    "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n'"
    " + m['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}"
    ""
    "{{ '[INST] ' + m['content'] + ' [/INST]' }}"
    "{% elif m['role'] == 'assistant' %}{{ ' ' + m['content'] + eos_token }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
)
PHI = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
)
GLM = (
    "[gMASK]<sop>{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
HARMONY = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}"
    "{{ '<|start|>assistant<|channel|>final<|message|>' + m['content'] }}"
    "{{ '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}"
    "{% else %}{{ '<|start|>' + m['role'] + '<|message|>' + m['content'] + '<|end|>' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"
)


def encoder(
    tokenizer: PreTrainedTokenizerBase, configured_stops: Sequence[int] | None = None, **template_args: Any
) -> ChatEncoder:
    """Return an encoder with the stop tokens that a model with these configured ones has."""
    from recovery.models.chat_encoding import ChatEncoder, stop_tokens

    stops = stop_tokens(configured_stops, ChatEncoder(tokenizer, template_args))
    return ChatEncoder(tokenizer, template_args, stops)


@dataclass(frozen=True)
class Family:
    """One family's tokens and template, and which of its tokens open a text, end it and end a turn."""

    specials: tuple[str, ...]
    template: str
    named: dict[str, str]  # tokenizer settings: bos_token, eos_token, ...
    configured_stops: tuple[str, ...]  # eos_token_id of the generation config
    document_end: str
    turn_end: str
    opening: tuple[str, ...] = field(default=())

    def tokenizer(self) -> PreTrainedTokenizerFast:
        from tokenizers.processors import TemplateProcessing
        from transformers import PreTrainedTokenizerFast

        backend = tiny.byte_backend(self.specials)
        if self.opening:
            single = " ".join([*self.opening, "$A"])
            backend.post_processor = TemplateProcessing(
                single=single, special_tokens=[(token, backend.token_to_id(token)) for token in self.opening]
            )
        return PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=self.template, **self.named)

    def ids(self, spellings: tuple[str, ...]) -> list[int]:
        return [256 + self.specials.index(spelling) for spelling in spellings]

    def encoder(self) -> ChatEncoder:
        return encoder(self.tokenizer(), self.ids(self.configured_stops))

    def chat_model(self) -> ChatModel:
        from transformers import GenerationConfig

        from recovery.models.chat_model import ChatModel

        model = tiny.model(vocab_size=256 + len(self.specials), eos_token_id=None, pad_token_id=None)
        model.generation_config = GenerationConfig(eos_token_id=self.ids(self.configured_stops))
        return ChatModel.of(model, self.tokenizer(), path="family")


FAMILIES = {
    "gemma-2": Family(
        specials=("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"),
        template=GEMMA,
        named={"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"},
        configured_stops=("<eos>", "<end_of_turn>"),
        opening=("<bos>",),
        document_end="<eos>",
        turn_end="<end_of_turn>",
    ),
    "llama-3": Family(
        specials=(
            *("<|begin_of_text|>", "<|end_of_text|>", "<|finetune_right_pad_id|>", "<|start_header_id|>"),
            *("<|end_header_id|>", "<|eom_id|>", "<|eot_id|>"),
        ),
        template=LLAMA,
        named={"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
        configured_stops=("<|eom_id|>", "<|end_of_text|>", "<|eot_id|>"),
        opening=("<|begin_of_text|>",),
        document_end="<|end_of_text|>",
        turn_end="<|eot_id|>",
    ),
    "mistral": Family(
        specials=("<unk>", "<s>", "</s>", "[INST]", "[/INST]"),
        template=MISTRAL,
        named={"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
        configured_stops=("</s>",),
        opening=("<s>",),
        document_end="</s>",
        turn_end="</s>",
    ),
    "phi-3": Family(
        specials=(
            *("<unk>", "<s>", "</s>", "<|endoftext|>", "<|assistant|>", "<|placeholder1|>"),
            *("<|system|>", "<|end|>", "<|user|>"),
        ),
        template=PHI,
        named={"bos_token": "<s>", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"},
        configured_stops=("<|endoftext|>", "<|assistant|>", "<|end|>"),
        document_end="<|endoftext|>",
        turn_end="<|end|>",
    ),
    "qwen": Family(
        specials=("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        template=CHATML,
        named={"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
        configured_stops=("<|im_end|>", "<|endoftext|>"),
        document_end="<|endoftext|>",
        turn_end="<|im_end|>",
    ),
    "smollm2": Family(
        specials=("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>"),
        template=CHATML,
        named={
            "bos_token": "<|im_start|>",
            "eos_token": "<|im_end|>",
            "pad_token": "<|im_end|>",
            "unk_token": "<|endoftext|>",
        },
        configured_stops=("<|im_end|>",),
        document_end="<|endoftext|>",
        turn_end="<|im_end|>",
    ),
    "glm-4": Family(
        specials=(
            *("<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>"),
            "<|observation|>",
        ),
        template=GLM,
        named={"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"},
        configured_stops=("<|endoftext|>", "<|user|>", "<|observation|>"),
        opening=("[gMASK]", "<sop>"),
        document_end="<|endoftext|>",
        turn_end="<|user|>",
    ),
    "gpt-oss": Family(
        specials=(
            *("<|startoftext|>", "<|endoftext|>", "<|return|>", "<|channel|>", "<|start|>", "<|end|>"),
            *("<|message|>", "<|call|>"),
        ),
        template=HARMONY,
        named={"bos_token": "<|startoftext|>", "eos_token": "<|return|>", "pad_token": "<|endoftext|>"},
        configured_stops=("<|return|>", "<|call|>", "<|endoftext|>"),
        document_end="<|endoftext|>",
        turn_end="<|return|>",
    ),
    "command-r": Family(
        specials=(
            "<PAD>",
            "<UNK>",
            "<BOS_TOKEN>",
            "<EOS_TOKEN>",
            "<|START_OF_TURN_TOKEN|>",
            "<|END_OF_TURN_TOKEN|>",
        ),
        template=CHATML.replace("<|im_start|>", "<|START_OF_TURN_TOKEN|>").replace(
            "<|im_end|>", "<|END_OF_TURN_TOKEN|>"
        ),
        named={"bos_token": "<BOS_TOKEN>", "eos_token": "<|END_OF_TURN_TOKEN|>", "pad_token": "<PAD>"},
        configured_stops=("<|END_OF_TURN_TOKEN|>",),
        opening=("<BOS_TOKEN>",),
        document_end="<EOS_TOKEN>",
        turn_end="<|END_OF_TURN_TOKEN|>",
    ),
}
