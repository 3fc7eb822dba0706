"""Run IFEval through lm-eval: its task, prompts and checkers.

Only this file and tasks/runner.py import lm_eval. `lm_eval.evaluate` is the loop inside `simple_evaluate`;
the wrapper around it would reseed torch's and numpy's global generators in the middle of a training run and
collect a report of the machine on every call.
"""

from __future__ import annotations

import json
import logging
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import langdetect
import lm_eval
import lm_eval.tasks
from lm_eval.api import task as task_module
from lm_eval.api.model import LM
from lm_eval.api.task import Task

from evals import dialogues, jsonl, nltk_sentences
from evals.scores import Generate, Message, chat, subsample
from evals.tasks.checker_arguments import require_used
from recovery import untrusted_json
from recovery.counted import counted
from recovery.errors import InputError, RecoverError, first_line
from recovery.hub_data import one_try

HUB_PROMPTS = "google/IFEval"
_IFEVAL_FOLDER = Path(lm_eval.tasks.__file__).parent / "ifeval"
PROMPT_FIELDS = ("key", "prompt", "instruction_id_list", "kwargs")
MESSAGES = "messages"  # of a local row with several turns, as JSON; its prompt is then their text
_COLUMNS = (*PROMPT_FIELDS, MESSAGES)
PUBLISHED_SIGNS = {("1122", "#"), ("1129", "!")}  # key and letter of prompts for which lm-eval draws a letter
_FIELDS = {"instruction_id_list": list, "kwargs": list}
Arguments = Sequence[Mapping[str, Any] | None]  # of each instruction
_settled = cache(nltk_sentences.settle)


@dataclass(frozen=True)
class CheckedAnswer:
    """One prompt's answer with the checkers' results for each instruction."""

    key: str
    prompt: str
    response: str
    instructions: tuple[str, ...]
    arguments: tuple[Mapping[str, Any], ...]  # of each instruction
    strict: tuple[bool, ...]
    loose: tuple[bool, ...]


@dataclass(frozen=True)
class IFEvalRun:
    checked: tuple[CheckedAnswer, ...]
    notes: tuple[str, ...]
    results: dict[str, Any]  # lm-eval's own


def run_ifeval(
    generate: Generate, prompts_path: str | Path | None = None, limit: int | None = None
) -> IFEvalRun:
    """Send all IFEval prompts to `generate` in one call and check the answers with lm-eval's checkers.

    Prompts come from a local JSONL in IFEval's format, or from the hub's google/IFEval; `limit` takes a fixed
    sample. Sentence model, prompts, instruction names and arguments are checked before generating.
    """
    return run_model(lambda task: _GenerateLM(generate, _turns(task)), prompts_path, limit)


def run_model(
    answering: Callable[[Task], LM], prompts_path: str | Path | None, limit: int | None
) -> IFEvalRun:
    """Do as `run_ifeval` does with the model that is made for the task, one of lm-eval's own kind."""
    model = nltk_sentences.settle()
    with quiet() as undetected:
        task = _drawn(_load_task(prompts_path), limit)
        _check_docs(task.eval_docs, str(prompts_path or HUB_PROMPTS))
        undetected.count = 0  # made-up answers aside
        results = lm_eval.evaluate(
            answering(task),
            {"tasks": {"ifeval": task}},
            bootstrap_iters=0,
            apply_chat_template=True,
            fewshot_as_multiturn=True,
        )
    checked = tuple(map(_checked, results["samples"]["ifeval"]))
    return IFEvalRun(checked, tuple(_notes(model, undetected.count)), results)


def prompts(prompts_path: str | Path | None = None) -> list[str]:
    """Return the text of each of the task's prompts."""
    return [dialogues.contents(row.get(MESSAGES) or chat(row["prompt"])) for row in rows(prompts_path)]


def require_prompts(prompts_path: str | Path) -> None:
    """Refuse a file that holds no prompts, or instructions and arguments that no checker can use."""
    nltk_sentences.settle()
    _check_docs(_docs(prompts_path), str(prompts_path))


def rows(prompts_path: str | Path | None = None) -> list[dict[str, Any]]:
    """Return the task's prompts as rows in IFEval's format."""
    nltk_sentences.settle()
    return [_row(doc) for doc in _docs(prompts_path)]


def _row(doc: Mapping[str, Any]) -> dict[str, Any]:
    turns = {MESSAGES: json.loads(doc[MESSAGES])} if doc.get(MESSAGES) else {}
    return {name: doc[name] for name in PROMPT_FIELDS if name != "prompt" or not turns} | turns


def _turns(task: Task) -> dict[str, list[Message]]:
    """Return the turns of prompts that have several, by the text that stands for them."""
    found: dict[str, list[Message]] = {}
    for doc in task.eval_docs:
        turns = json.loads(doc[MESSAGES]) if doc.get(MESSAGES) else None
        if turns and found.setdefault(doc["prompt"].strip(), turns) != turns:
            raise InputError(f"key {doc['key']}: another prompt has the same turns with other tools")
    return found


def check(response: str, prompt: str, instructions: Sequence[str], kwargs: Arguments) -> list[bool]:
    """Check each instruction on one response with the strict checkers."""
    _settled()
    from lm_eval.tasks.ifeval.utils import InputExample, test_instruction_following_strict

    with quiet():
        random.seed(0)
        asked = InputExample(0, list(instructions), prompt, [dict(arguments or {}) for arguments in kwargs])
        return list(test_instruction_following_strict(asked, response).follow_instruction_list)


def try_checkers(prompt: str, instructions: Sequence[str], kwargs: Arguments) -> None:
    """Raise what the checkers raise for wrong arguments, and for those they would draw, before any answer."""
    values = [value for arguments in kwargs for value in (arguments or {}).values() if value]
    words = [str(one) for value in values for one in (value if isinstance(value, list) else [value])]
    for answer in ("x", " ".join(["x", *words])):  # some are looked at only where it holds those before
        check(answer, prompt, instructions, kwargs)
    from lm_eval.tasks.ifeval.instructions_registry import INSTRUCTION_DICT

    with quiet():
        for name, arguments in zip(instructions, kwargs, strict=True):
            require_used(INSTRUCTION_DICT[name](name), arguments or {})


def instruction_types() -> tuple[str, ...]:
    """Return the instruction types that have a checker."""
    nltk_sentences.settle()
    from lm_eval.tasks.ifeval.instructions_registry import INSTRUCTION_DICT

    return tuple(INSTRUCTION_DICT)


@cache
def instruction_conflicts() -> dict[str, frozenset[str]]:
    """Return, for each instruction type, the types that the checkers' authors do not combine it with."""
    nltk_sentences.settle()
    from lm_eval.tasks.ifeval.instructions_registry import INSTRUCTION_CONFLICTS

    return {name: frozenset(others) for name, others in INSTRUCTION_CONFLICTS.items()}


class _GenerateLM(LM):
    """lm-eval's model interface over a plain function; the chat travels through it as JSON."""

    tokenizer_name = "recover"

    def __init__(self, generate: Generate, turns: Mapping[str, list[Message]]) -> None:
        super().__init__()
        self._generate = generate
        self._turns = turns

    def apply_chat_template(self, chat_history: Any, add_generation_prompt: bool = True) -> str:
        turns = self._turns.get(chat_history[-1]["content"].strip())
        return json.dumps(turns or chat_history)

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        texts = self._generate([json.loads(request.args[0]) for request in requests])
        if len(texts) != len(requests):
            raise RecoverError(f"IFEval: {len(texts)} answers to {len(requests)} prompts: each needs one")
        # The checkers of PUBLISHED_SIGNS draw a letter at random: the same draw in every run.
        random.seed(0)
        return list(texts)

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        raise NotImplementedError("only generation tasks are run")

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        raise NotImplementedError("only generation tasks are run")


def _load_task(prompts_path: str | Path | None) -> Task:
    """Load lm-eval's `ifeval` task, over the hub's prompts or a local file's (in memory, without a cache)."""
    if prompts_path is not None:
        return _task_over(_local_prompts(prompts_path))
    try:
        with one_try(HUB_PROMPTS):
            return _manager().load("ifeval")["tasks"]["ifeval"]
    except Exception as error:  # offline, not cached, gated: each raises another kind
        raise InputError(
            f"{HUB_PROMPTS}: cannot be loaded from the hub ({first_line(error)}): "
            "go online once, or give a local file (--ifeval FILE)"
        ) from error


def _docs(prompts_path: str | Path | None) -> Iterable[Mapping[str, Any]]:
    """Return the rows of the task; those of a local file without the task, which takes longer to set up."""
    return _load_task(None).eval_docs if prompts_path is None else list(_local_prompts(prompts_path))


def _local_prompts(path: str | Path) -> Any:
    return _parsed_prompts(jsonl.text_of(path), str(path))


@lru_cache(maxsize=4)
def _parsed_prompts(text: str, where: str) -> Any:
    """Return a file's prompts as a data set, parsed once: a cycle asks for the same file a dozen times."""
    return jsonl.dataset(_read_prompts(text, where), where, "give `kwargs` IFEval's own types")


def _task_over(prompts: Any) -> Task:
    """Return lm-eval's `ifeval` task over a data set of prompts."""
    override = {"task": "ifeval", "custom_dataset": lambda **_: {"train": prompts}}
    return _manager().load({"group": "local", "task": [override]})["tasks"]["ifeval"]


def _manager() -> lm_eval.tasks.TaskManager:
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    return lm_eval.tasks.TaskManager(include_defaults=False, include_path=str(_IFEVAL_FOLDER))


def _drawn(task: Task, limit: int | None) -> Task:
    """Return the task over a seeded sample of its prompts."""
    docs = list(task.eval_docs)
    if limit is None or limit >= len(docs):
        return task
    rows = [{name: doc[name] for name in _COLUMNS if name in doc} for doc in subsample(docs, limit)]
    return _task_over(jsonl.dataset(rows, HUB_PROMPTS))


def _read_prompts(text: str, path: str) -> list[dict[str, Any]]:
    rows = [jsonl.without_nulls(row) for row in jsonl.parse(text, path, _FIELDS)]
    keys = [str(row.setdefault("key", number)) for number, row in enumerate(rows)]
    if len(set(keys)) < len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise InputError(f"{path}: key {twice} occurs twice: give every prompt its own key")
    for number, row in enumerate(rows, 1):
        _check_types(row, f"{path}, prompt {number}")
    names = sorted({"unused"}.union(*(kwargs or {} for row in rows for kwargs in row["kwargs"])))
    asked = [dialogues.read(row, f"{path}, prompt {number}").messages for number, row in enumerate(rows, 1)]
    return [
        {
            "key": str(row["key"]),
            "prompt": dialogues.shown(turns),
            MESSAGES: "" if turns == chat(turns[0]["content"]) else json.dumps(turns),
            "instruction_id_list": row["instruction_id_list"],
            # Like the hub's set: every argument's name everywhere, null where unused.
            "kwargs": [dict.fromkeys(names) | (kwargs or {}) for kwargs in row["kwargs"]],
        }
        for row, turns in zip(rows, asked, strict=True)
    ]


def _check_types(row: dict[str, Any], where: str) -> None:
    """Refuse a row whose key is too long, instructions are no texts, or arguments are no objects."""
    jsonl.check_key(row, "key", where)
    if not all(isinstance(name, str) for name in row["instruction_id_list"]):
        raise InputError(f"{where}: `instruction_id_list` must hold texts: use IFEval's own types")
    if not all(kwargs is None or isinstance(kwargs, dict) for kwargs in row["kwargs"]):
        raise InputError(f"{where}: `kwargs` must hold an object or null for each instruction")


def _check_docs(docs: Iterable[Mapping[str, Any]], where: str) -> None:
    """Check every instruction's name and arguments, so that a wrong file fails before generation."""
    known = instruction_types()
    for doc in docs:
        names, arguments = doc["instruction_id_list"], doc["kwargs"]
        place = f"{where}, key {doc['key']}"
        if not names or len(names) != len(arguments):
            raise InputError(f"{place}: {len(names)} instructions with {len(arguments)} kwargs")
        if unknown := [name for name in names if name not in known]:
            raise InputError(f"{place}: unknown instruction {unknown[0]!r}: see IFEval's types")
        for name, kwargs in zip(names, arguments, strict=True):
            if (str(doc["key"]), str((kwargs or {}).get("letter"))) in PUBLISHED_SIGNS:
                continue
            try:
                try_checkers(doc["prompt"], [name], [kwargs])
            except Exception as error:  # the checkers raise many classes for wrong arguments
                raise InputError(f"{place}, {name}: {first_line(error)}") from error


def _checked(sample: dict[str, Any]) -> CheckedAnswer:
    doc = sample["doc"]
    return CheckedAnswer(
        key=str(doc["key"]),
        prompt=doc["prompt"],
        response=sample["filtered_resps"][0],
        instructions=tuple(doc["instruction_id_list"]),
        arguments=tuple(given or {} for given in doc["kwargs"]),
        strict=tuple(bool(passed) for passed in sample["inst_level_strict_acc"]),
        loose=tuple(bool(passed) for passed in sample["inst_level_loose_acc"]),
    )


def _notes(sentence_model: str, undetected: int) -> Iterator[str]:
    if sentence_model == "fallback":
        yield nltk_sentences.FALLBACK_NOTE
    if undetected:
        yield f"no language could be told in {counted(undetected, 'check')}, taken as passed, as in lm-eval"


class _Undetected(logging.Filter):
    """Count the checkers' log lines about undetectable language instead of printing whole answers."""

    count = 0

    def filter(self, record: logging.LogRecord) -> bool:
        self.count += 1
        return False


@contextmanager
def quiet() -> Iterator[_Undetected]:
    """Seed language detection and hide the progress bar inside; restore Python's random state afterwards."""
    if checkers := sys.modules.get("lm_eval.tasks.ifeval.instructions"):
        checkers.json = untrusted_json  # type: ignore[attr-defined] # a thousand brackets ended the check
    undetected = _Undetected()
    logger = logging.getLogger("lm_eval.tasks.ifeval.instructions")
    state = random.getstate()
    bar, detect = task_module.tqdm, langdetect.detect
    logger.addFilter(undetected)
    langdetect.DetectorFactory.seed = 0
    langdetect.detect = lru_cache(maxsize=None)(detect)
    task_module.tqdm = lambda iterable, **_: iterable
    try:
        yield undetected
    finally:
        task_module.tqdm = bar
        langdetect.detect = detect
        logger.removeFilter(undetected)
        random.setstate(state)
