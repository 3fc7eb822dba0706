"""Read how many tokens a model was made for."""

from __future__ import annotations

from typing import Any


def context_length(config: Any) -> int | None:
    """Return how many positions a model was made for, if its config says so.

    A vision-language model names the length with its text model alone.
    """
    return getattr(config.get_text_config(), "max_position_embeddings", None)
