"""IFEval: does the model do what the prompt's checkable instructions ask? (Zhou et al. 2023)

The score is prompt-level strict accuracy; the details carry the four usual accuracies under lm-eval's names,
their 95 % intervals (instructions of one prompt stand or fall together, so that level is clustered by prompt)
and the counts by instruction type and by family.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evals import dialogues, jsonl
from evals.intervals import clustered_interval, wilson_interval
from evals.scores import Generate, Item, Message, Score, repeated, share
from recovery.counted import counted
from recovery.errors import InputError
from recovery.models.thinking import split_thinking

if TYPE_CHECKING:
    from evals.harness import CheckedAnswer, IFEvalRun

IFEVAL = "ifeval"
FURTHER = "ifeval:further"  # prompts in the same format, asked where the suite's own are underpowered
METRIC = "prompt_strict"


def evaluate(
    generate: Generate | Sequence[Generate], prompts_path: str | Path | None = None, limit: int | None = None
) -> tuple[Score, dict[str, Any]]:
    """Score a model on the prompts of a local JSONL, or of google/IFEval on the hub; return lm-eval's results
    too, for the first answers.

    Several functions give one sampled answer each to every prompt: the score is the mean pass rate, clustered
    by prompt.
    """
    from evals import harness  # a slow import, deferred until something is scored

    several = [generate] if callable(generate) else list(generate)
    runs = [harness.run_ifeval(one, prompts_path, limit) for one in several]
    return score_runs(runs), runs[0].results


def score_runs(runs: Sequence[IFEvalRun], suite: str = IFEVAL) -> Score:
    """Score the checked answers of one run, or of several runs over the same prompts together."""
    if len(runs) == 1:
        return _score(runs[0], suite=suite)
    checked = tuple(
        replace(one, key=f"{one.key}#{number}") for number, run in enumerate(runs) for one in run.checked
    )
    notes = tuple(dict.fromkeys(note for run in runs for note in run.notes))
    return _score(replace(runs[0], checked=checked, notes=notes), suite=suite, sampled=True)


def score_responses(responses_path: str | Path, prompts_path: str | Path | None = None) -> Score:
    """Score recorded answers, lines of {"prompt", "response"}, through the same task."""
    from evals import harness

    recorded = _Recorded(responses_path)
    run = harness.run_ifeval(recorded, prompts_path)
    return _score(run, recorded.notes)


def prompts(prompts_path: str | Path | None = None) -> list[str]:
    """Return the text of each prompt of a local file or of the hub's set."""
    from evals import harness

    return harness.prompts(prompts_path)


def require_prompts(prompts_path: str | Path) -> None:
    """Refuse a file that the suite could not ask or check."""
    from evals import harness

    harness.require_prompts(prompts_path)


def rows(prompts_path: str | Path | None = None) -> list[dict[str, Any]]:
    """Return the rows of a local file or of the hub's set, in IFEval's format."""
    from evals import harness

    return harness.rows(prompts_path)


def followed(response: str, prompt: str, instructions: Sequence[str], kwargs: Sequence[Any]) -> float:
    """Return the share of a prompt's instructions that a response follows by the strict checkers."""
    from evals import harness

    return share(harness.check(response, prompt, instructions, kwargs))


def try_checkers(prompt: str, instructions: Sequence[str], kwargs: Sequence[Any]) -> None:
    """Raise, before the first answer, what the checkers raise for arguments that they cannot use."""
    from evals import harness

    harness.try_checkers(prompt, instructions, kwargs)


class _Recorded:
    """Look up answers by prompt; a prompt that occurs more than once gets its answers in the file's order.

    One published prompt was reworded after the first answers to it were recorded, so up to one prompt in a
    hundred may be paired by likeness (with a note). Any other gap is an error, not a failed prompt.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = path
        self._answers: dict[str, list[str]] = defaultdict(list)
        self.notes: list[str] = []
        for number, row in enumerate(jsonl.read(path, {"prompt": str}), 1):
            if not isinstance(row.get("response", 0), str | None):
                raise InputError(
                    f"{path}, object {number}: no `response`: text, or null for none, is expected"
                )
            self._answers[row["prompt"].strip()].append(split_thinking(row["response"] or "")[1])

    def __call__(self, chats: list[list[Message]]) -> list[str]:
        prompts = [dialogues.shown(messages).strip() for messages in chats]
        asked = Counter(prompts)
        self._pair_reworded([prompt for prompt in asked if prompt not in self._answers], asked)
        for prompt, times in asked.items():
            if len(self._answers[prompt]) != times:
                raise InputError(
                    f"{self._path}: {len(self._answers[prompt])} responses to {prompt[:60]!r}, "
                    f"asked {times} times: keep one for each"
                )
        if spare := len(self._answers.keys() - asked.keys()):
            self.notes.append(f"responses to {counted(spare, 'prompt')} not among those asked were left out")
        return [self._answers[prompt].pop(0) for prompt in prompts]

    def _pair_reworded(self, missing: list[str], asked: Counter[str]) -> None:
        few = len(missing) <= len(asked) / 100
        spare = [prompt for prompt in self._answers if prompt not in asked]
        for prompt in missing:
            near = get_close_matches(prompt, spare, n=1, cutoff=0.9) if few else []
            if not near:
                raise InputError(
                    f"{self._path}: no response to {len(missing)} of {len(asked)} prompts "
                    f"(first: {prompt[:60]!r}): every prompt needs one"
                )
            spare.remove(near[0])
            self._answers[prompt] = self._answers.pop(near[0])
            self.notes.append(f"the response to {near[0][:60]!r}… was paired with a reworded prompt")


def _score(run: IFEvalRun, notes: Sequence[str] = (), suite: str = IFEVAL, *, sampled: bool = False) -> Score:
    """Score checked answers; if `sampled`, keys end with the number of the answer to their prompt."""
    keys = [one.key.rpartition("#")[0] if sampled else one.key for one in run.checked]
    first: dict[str, str] = {}  # key of the first prompt, by its text: equal prompts are a cluster
    clusters = [first.setdefault(one.prompt, key) for key, one in zip(keys, run.checked, strict=True)]
    items = tuple(_item(one, cluster) for one, cluster in zip(run.checked, clusters, strict=True))
    passed = [item.passed for item in items]
    asked = {key: one.prompt for key, one in zip(keys, run.checked, strict=True)}
    again = repeated(list(asked.values()), "prompts")
    return Score(
        suite=suite,
        metric=METRIC,
        value=share(passed),
        n=len(items),
        interval=_share_interval(passed, clusters),
        items=items,
        details=_details(run.checked, keys, clusters) | {"notes": [*run.notes, *notes, *again]},
    )


def _share_interval(passed: Sequence[bool], clusters: Sequence[str]) -> tuple[float, float]:
    """Return Wilson's interval; where prompts were answered several times, one clustered by prompt."""
    if len(set(clusters)) == len(clusters):
        return wilson_interval(sum(passed), len(passed))
    return clustered_interval(passed, clusters)


def _item(checked: CheckedAnswer, cluster: str) -> Item:
    """Return a checked answer as an item; the answers to one prompt are a cluster."""
    return Item(
        key=checked.key,
        prompt=checked.prompt,
        response=checked.response,
        passed=all(checked.strict),
        detail={
            "instructions": list(checked.instructions),
            "arguments": [_given(arguments) for arguments in checked.arguments],
            "strict": list(checked.strict),
            "loose": list(checked.loose),
            "passed_loose": all(checked.loose),
            "cluster": cluster,
        },
    )


def _given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that a prompt gives, in one order: files and the hub name the others as null."""
    return {name: arguments[name] for name in sorted(arguments) if arguments[name] is not None}


def _details(
    checked: tuple[CheckedAnswer, ...], keys: Sequence[str], clusters: Sequence[str]
) -> dict[str, Any]:
    """Return the four accuracies with their intervals, and the counts; `keys` are those of the prompts."""
    values: dict[str, float] = {}
    intervals: dict[str, tuple[float, float]] = {}
    for mode in ("strict", "loose"):
        rows = [getattr(one, mode) for one in checked]
        prompts = [all(row) for row in rows]
        flat = [passed for row in rows for passed in row]
        flat_clusters = [cluster for cluster, row in zip(clusters, rows, strict=True) for _ in row]
        values[f"prompt_level_{mode}_acc"] = share(prompts)
        intervals[f"prompt_level_{mode}_acc"] = _share_interval(prompts, clusters)
        values[f"inst_level_{mode}_acc"] = share(flat)
        intervals[f"inst_level_{mode}_acc"] = clustered_interval(flat, flat_clusters)
    return values | {
        "intervals": {name: list(interval) for name, interval in intervals.items()},
        "by_instruction": _counts(checked, str),
        "by_family": _counts(checked, lambda name: name.split(":")[0]),
        "prompts": len(set(keys)),
        "samples": len(checked) // max(len(set(keys)), 1),
    }


def _counts(checked: tuple[CheckedAnswer, ...], label: Callable[[str], str]) -> dict[str, dict[str, int]]:
    """Return {type: {passed, passed_loose, n}}, types in alphabetical order."""
    counts: dict[str, dict[str, int]] = {}
    for one in checked:
        for name, strict, loose in zip(one.instructions, one.strict, one.loose, strict=True):
            row = counts.setdefault(label(name), {"passed": 0, "passed_loose": 0, "n": 0})
            row["passed"] += strict
            row["passed_loose"] += loose
            row["n"] += 1
    return dict(sorted(counts.items()))
