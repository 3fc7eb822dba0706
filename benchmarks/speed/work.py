"""Count a training step's arithmetic: its matrix products, which no implementation can avoid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Work:
    """Matrix-product FLOPs of a model: an (m, k) by (k, n) product costs 2mkn, its backward pass 4mkn."""

    body: int  # weights of the linear layers between embedding and head
    head: int  # weights of the head
    attention: int  # layers x heads x head width

    @classmethod
    def of(cls, model: Any) -> Work:
        config = model.config
        head = model.get_output_embeddings()
        linear = [m for m in model.modules() if m.__class__.__name__ == "Linear" and m is not head]
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        heads = config.num_hidden_layers * config.num_attention_heads * width
        return cls(sum(m.weight.numel() for m in linear), head.weight.numel(), heads)

    def forward(self, lengths: Sequence[int], predictions: int) -> float:
        """Count reading all sequences at once; a token attends to half of its sequence on average."""
        tokens, pairs = sum(lengths), sum(n * n / 2 for n in lengths)
        return 2 * (self.body * tokens + self.head * predictions) + 4 * self.attention * pairs

    def sampling(self, prompts: Sequence[int], answers: Sequence[int]) -> float:
        """Count reading every prompt, then decoding token by token; the last token needs no forward pass."""
        whole = [p + a - 1 for p, a in zip(prompts, answers, strict=True)]
        return self.forward(whole, sum(answers))

    def distillation(self, prompts: Sequence[int], answers: Sequence[int]) -> dict[str, float]:
        """Count a step of on-policy distillation from a teacher of the same size."""
        whole = [p + a for p, a in zip(prompts, answers, strict=True)]
        forward = self.forward(whole, sum(answers))
        return {"sampling": self.sampling(prompts, answers), "scoring": forward, "training": 3 * forward}
