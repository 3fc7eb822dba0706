"""Bundle a model with its tokenizer, chat template and stop tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from recovery.forward.hidden_states import unwrap
from recovery.models.chat_encoding import ChatEncoder, Message, stop_tokens

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from recovery.batches.rollouts import Rollouts


@dataclass
class ChatModel:
    """A model with everything needed to encode chats for it and decode its answers."""

    model: PreTrainedModel | PeftModel
    tokenizer: PreTrainedTokenizerBase
    stop_ids: tuple[int, ...]
    pad_id: int
    template_args: dict[str, Any] = field(default_factory=dict)
    path: str = ""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    directory: Path | None = None
    revision: str | None = None
    weights: dict[str, torch.Tensor] | None = None  # full weights, if the model holds only a shard of them

    @classmethod
    def of(
        cls,
        model: PreTrainedModel | PeftModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        path: str = "",
        template_args: dict[str, Any] | None = None,
        directory: Path | None = None,
        revision: str | None = None,
    ) -> ChatModel:
        """Wrap a loaded model; take stop tokens from its generation config, tokenizer and chat template."""
        args = dict(template_args or {})
        rows = unwrap(model).get_input_embeddings().weight.shape[0]
        config = unwrap(model).generation_config
        stops = stop_tokens(config.eos_token_id if config else None, ChatEncoder(tokenizer, args))
        stops = tuple(stop for stop in stops if 0 <= stop < rows)
        pad = tokenizer.pad_token_id
        pad = pad if pad is not None and pad < rows else next(iter(stops), 0)
        device = next(model.parameters()).device
        return cls(model, tokenizer, stops, pad, args, path, device, directory, revision)

    @cached_property
    def encoder(self) -> ChatEncoder:
        """Return the encoder: the tokenizer with its chat template, safe against spelled control tokens."""
        return ChatEncoder(self.tokenizer, self.template_args, self.stop_ids)

    @cached_property
    def largest_id(self) -> int:
        """Return the largest token id that a dialogue or a text becomes.

        A control token counts only where the template or the tokenizer writes it: no text becomes one.
        """
        encoder, unknown = self.encoder, self.tokenizer.unk_token_id
        written = {*encoder.prompt_ids([{"role": "user", "content": "a"}]), *encoder.opening_ids}
        if encoder.turn_end_id is not None:
            written.add(encoder.turn_end_id)
        ids = self.tokenizer.get_vocab().values()
        return max(written.union(i for i in ids if i not in encoder.control_ids or i == unknown))

    def prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        """Encode the dialogue and the opening of the assistant's turn with the chat template."""
        return self.encoder.prompt_ids(messages)

    def answer_pair(self, messages: Sequence[Message], answer: str) -> tuple[list[int], list[int]]:
        """Encode a prompt, with the marks before its answer, and an answer as the model would write it."""
        return self.answer_pairs(messages, [answer])[0]

    def answer_pairs(
        self, messages: Sequence[Message], answers: Iterable[str]
    ) -> list[tuple[list[int], list[int]]]:
        """Do as `answer_pair` does for several answers to one prompt."""
        return self.encoder.answer_pairs(messages, answers)

    def dialogue_ids(self, messages: Sequence[Message]) -> tuple[list[int], list[bool]]:
        """Encode a dialogue up to its stop token; return a mask that is True on the last assistant turn."""
        return self.encoder.dialogue_ids(messages)

    def text_ids(self, text: str) -> list[int]:
        """Encode plain text without control tokens, even if the text spells one."""
        return self.encoder.text_ids(text)

    def document_start(self, text: str) -> list[int]:
        """Encode a document from its beginning: the tokenizer's opening tokens (BOS), then the text."""
        return [*self.opening_ids, *self.text_ids(text)]

    def text(self, ids: Sequence[int]) -> str:
        """Decode token ids without control tokens."""
        return self.encoder.text(ids)

    def answer(self, ids: Sequence[int], prompt: Sequence[int] = ()) -> str:
        """Decode a response to a prompt without its thinking block."""
        return self.encoder.answer(ids, prompt)[1]

    def answers(self, rollouts: Rollouts) -> list[str]:
        """Decode the response of each row; rewards and judges read these texts."""
        return list(map(self.answer, rollouts.responses(), rollouts.prompts()))

    @cached_property
    def opening_ids(self) -> list[int]:
        """Return the control tokens (BOS) that the tokenizer puts before every text; often empty."""
        return self.encoder.opening_ids

    @cached_property
    def document_end(self) -> int:
        """Return the token that ended a text in pretraining, or the first stop token if there is none."""
        end = self.encoder.document_end_id
        rows = unwrap(self.model).get_input_embeddings().weight.shape[0]
        return end if end is not None and end < rows else self.stop_ids[0]

    def document(self, text: str) -> tuple[list[int], list[bool]]:
        """Encode a text with opening and end tokens; return a mask that is True on all but the opening."""
        content = [*self.text_ids(text), self.document_end]
        return [*self.opening_ids, *content], [False] * len(self.opening_ids) + [True] * len(content)
