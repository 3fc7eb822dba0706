"""A model and what is needed to talk to it."""

from __future__ import annotations

from collections.abc import Sequence
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


@dataclass
class ChatModel:
    """A model and what is needed to talk to it."""

    model: PreTrainedModel | PeftModel
    tokenizer: PreTrainedTokenizerBase
    stop_ids: tuple[int, ...]
    pad_id: int
    template_args: dict[str, Any] = field(default_factory=dict)
    path: str = ""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    directory: Path | None = None
    revision: str | None = None
    weights: dict[str, torch.Tensor] | None = None  # where the model itself holds shards of them

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
        """Wrap a model in memory: stop tokens from its generation config, tokenizer and chat template."""
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
        """The tokenizer with its chat template, safe against text that spells control tokens."""
        return ChatEncoder(self.tokenizer, self.template_args, self.stop_ids)

    def prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        """The dialogue and the opening of the assistant's turn, by the chat template."""
        return self.encoder.prompt_ids(messages)

    def dialogue_ids(self, messages: Sequence[Message]) -> tuple[list[int], list[bool]]:
        """A whole dialogue up to its stop token; True on the last assistant turn's tokens."""
        return self.encoder.dialogue_ids(messages)

    def text_ids(self, text: str) -> list[int]:
        """A plain document: no control token, whatever it says."""
        return self.encoder.text_ids(text)

    def text(self, ids: Sequence[int]) -> str:
        """Decoded, control tokens dropped."""
        return self.encoder.text(ids)

    @property
    def document_end(self) -> int:
        """The stop token that ends texts rather than chat turns, where the model has one."""
        turn_end = self.tokenizer.eos_token_id
        return next((stop for stop in self.stop_ids if stop != turn_end), self.stop_ids[0])

    def document(self, text: str) -> tuple[list[int], list[bool]]:
        """A text as ids that end with the tokenizer's end of text; every token but the first is a target."""
        ids = [*self.text_ids(text), self.document_end]
        return ids, [True] * len(ids)
