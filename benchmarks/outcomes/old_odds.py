"""Measure how probable a changed fact's old answer still is: it moves long before an answer turns."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from evals.scores import Item, chat
from recovery.models.chat_model import ChatModel
from recovery.teachers.likelihood import continuation_logprobs, reader, split_ids


def old_odds(model: ChatModel, updates: Sequence[Item]) -> list[float]:
    """Return p(old) / (p(old) + p(new)) of each question, where the model's own answer names either."""
    pairs = [
        split_ids(model, chat(item.prompt), beginning(item) + item.detail[which][0])
        for which in ("was", "answers")
        for item in updates
    ]
    found = continuation_logprobs(reader(model), pairs, model.pad_id)
    return [_odds(old - new) for old, new in zip(found, found[len(updates) :], strict=False)]


def beginning(item: Item) -> str:
    """Return the response up to the new or the old answer; nothing if it names neither."""
    named = "|".join(re.escape(item.detail[which][0]) for which in ("answers", "was"))
    found = re.search(rf"\b(?:{named})\b", item.response)
    return item.response[: found.start()] if found else ""


def _odds(difference: float) -> float:
    """Return the logistic function, for differences of any size."""
    return 1 / (1 + math.exp(-difference)) if difference > 0 else 1 - 1 / (1 + math.exp(difference))
