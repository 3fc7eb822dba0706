"""Read what all prompts of a batch begin with only once: a system prompt, a template's frame, examples."""

from __future__ import annotations

from collections.abc import Sequence

SAVED = 256  # tokens: one more pass takes about as long as reading so many


def common_beginning(prompts: Sequence[Sequence[int]], saves_at_least: float = SAVED) -> int:
    """Return how many first tokens of all prompts to read once; 0 where that saves too few.

    Each prompt keeps a token of its own, whose logits are wanted.
    """
    shortest = min(map(len, prompts)) - 1
    if shortest * (len(prompts) - 1) < saves_at_least:
        return 0
    first, last = min(prompts, key=list), max(prompts, key=list)  # what these share, all between them share
    differs = (at for at in range(shortest) if first[at] != last[at])
    alike = next(differs, shortest)
    return alike if alike * (len(prompts) - 1) >= saves_at_least else 0
