"""Options that override one setting of recover.yaml, each declared in one place by the setting's key.

What was typed is collected in `session.changes` ({"distill.steps": 20}); `overrides.changed` applies it.
To add such an option, add a line here and name it above the commands that take it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from pipelines.cli.options import SEED, F, Place, Session, refuse_blank
from recovery.errors import InputError

Read = Callable[[Any], Any]
EPILOG = "[section.key] names the key of recover.yaml that an option overrides for this run."


class SettingOption(click.Option):
    """An option for one key of recover.yaml; `read` turns what was typed into the setting's value."""

    def __init__(self, *args: Any, key: str, read: Read, **attributes: Any) -> None:
        super().__init__(*args, expose_value=False, callback=self._collect, **attributes)
        self.key = key
        self.read = read

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the option and its help, which ends with the key."""
        record = super().get_help_record(ctx)
        return record and (record[0], f"{record[1]}  [{self.key}]")

    def _collect(self, ctx: click.Context, param: click.Parameter, value: Any) -> None:
        refuse_blank(ctx, param, value)
        if value not in (None, ()):
            ctx.ensure_object(Session).changes[self.key] = self.read(value)


def setting(flag: str, key: str, read: Read = lambda value: value, **attributes: Any) -> Callable[[F], F]:
    """Add an option that overrides the setting `key`."""
    attributes = {"default": None} | attributes
    return click.option(flag, cls=SettingOption, key=key, read=read, **attributes)


def file(value: str) -> str:
    """Make a file's path absolute, so that the run can be resumed from any folder; keep other sources."""
    from pipelines.config.anchored_paths import anchored_source

    return anchored_source(value, Path.cwd())


def path(value: Path) -> str:
    return str(value.absolute())


def pairs(value: str | tuple[str, ...]) -> dict[str, str]:
    """Parse NAME=VALUE, several with commas or by repeating the option."""
    text = value if isinstance(value, str) else ",".join(value)
    found = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, sign, given = part.partition("=")
        if not sign or not name or not given:
            raise InputError(f"{part!r}: write NAME=VALUE")
        found[name.strip()] = given.strip()
    return found


def shares(value: str) -> dict[str, Any]:
    """Return the shares of the mix; a source that is not named gets 0."""
    from pipelines.config.sections.midtrain import Mix

    typed = pairs(value)
    unknown = [name for name in typed if name not in Mix.model_fields]
    if unknown:
        raise InputError(f"--mix {unknown[0]}: choose among {', '.join(Mix.model_fields)}")
    found = {**dict.fromkeys(Mix.model_fields, 0.0), **typed}
    try:
        Mix.model_validate(found)
    except ValueError as error:
        rule = "each share lies between 0 and 1, that of new above 0, and together they add up to 1"
        raise InputError(f"--mix {value}: {rule}, as in new=0.7,chat=0.3") from error
    return found


def method_name(value: str) -> str:
    """Refuse an unknown method before a home is opened or anything else is checked."""
    from recovery.methods.table import get

    return get(value).name


def adapter(rank: int) -> dict[str, Any] | None:
    """Return an adapter of this rank, with alpha equal to it; None for rank 0."""
    return {"rank": rank, "alpha": None} if rank else None


def enabled(flag: bool) -> dict[str, Any] | None:
    """Return an empty section, which takes its defaults, for a flag that is set; None otherwise."""
    return {} if flag else None


OVERLAP = click.Choice(["drop", "weight", "keep"])

seed = setting("--seed", "seed", type=SEED, metavar="N", help="seed of sampling and training")


def prompts(text: str = "recovery prompts") -> Callable[[F], F]:
    """Return the option --prompts; the text says what they are for."""
    where = "a file, hub:NAME:SPLIT:FIELD, self (the clean model writes them), or microworld"
    return setting("--prompts", "distill.prompts", file, metavar="SOURCE", help=f"{text}: {where}")


ifeval = setting(
    "--ifeval",
    "eval.ifeval",
    file,
    metavar="FILE",
    help="questions that measure behaviour, in IFEval's format (`recover prompts ifeval` writes some)",
)
further = setting(
    "--further", "eval.further_prompts", file, metavar="N|FILE", help="prompts of a second look at behaviour"
)
probes = setting(
    "--probes", "eval.probes", file, metavar="FILE", help="questions about knowledge and retention"
)

# Midtraining
mix = setting(
    "--mix",
    "midtrain.mix",
    shares,
    metavar="NAME=SHARE,...",
    help="share of each source in the tokens, as in new=0.4,questions=0.3,earlier=0.15,chat=0.15",
)
strict = setting(
    "--strict", "midtrain.reading.strict", is_flag=True, help="stop at the first file that cannot be read"
)
freeze_embeddings = setting(
    "--freeze-embeddings/--train-embeddings",
    "midtrain.freeze_embeddings",
    help="keep embeddings and output head fixed, or train them",
)


def midtrain_method(flag: str) -> Callable[[F], F]:
    return setting(
        flag,
        "midtrain.method",
        type=click.Choice(["text", "passage"]),
        help="text: next-token training; passage: learn answers of the clean model that sees the documents "
        "(default: recover.yaml)",
    )


midtrain_tokens = setting(
    "--midtrain-tokens",
    "midtrain.tokens_per_step",
    type=click.IntRange(1),
    metavar="N",
    help="tokens of a midtraining step",
)

# Distillation
method = setting("--method", "distill.method", method_name, metavar="NAME", help="a row of `recover methods`")
dials = setting(
    "--set",
    "distill.dials",
    pairs,
    multiple=True,
    metavar="DIAL=VALUE",
    help="set a dial of the method (`recover methods` lists them); may be repeated",
)
overlap = setting(
    "--overlap", "distill.overlap", type=OVERLAP, help="what to do with prompts about the new documents"
)
merge = setting(
    "--merge",
    "distill.merge",
    type=float,
    metavar="SHARE",
    help="share of the teacher's weights to merge in before the first step",
)
rehearsal = setting(
    "--rehearsal",
    "distill.rehearsal",
    type=float,
    metavar="SHARE",
    help="share of the tokens read, prompts not counted, that come from the midtraining's documents",
)
tripwire = setting(
    "--tripwire",
    "distill.tripwire_share",
    type=float,
    metavar="SHARE",
    help="stop when less than this share of the new knowledge is left",
)
response_pairs = setting(
    "--pairs",
    "distill.pairs",
    file,
    metavar="SOURCE",
    help="prompts with responses: training data of sft, demonstrations for the teacher",
)
context = setting(
    "--context", "distill.context", file, metavar="TEXT|FILE", help="text that only the teacher reads"
)
reward = setting(
    "--reward",
    "distill.reward",
    file,
    metavar="NAME",
    help="reward function: exact, ifeval, MODULE:FUNCTION or FILE.py:FUNCTION",
)
routes = setting(
    "--route",
    "distill.routes",
    pairs,
    multiple=True,
    metavar="NAME=CHECKPOINT",
    help="teacher of the prompts with this route; may be repeated",
)
stop_when_recovered = setting(
    "--stop-when-recovered",
    "distill.stop",
    enabled,
    is_flag=True,
    help="stop as soon as a check on separate prompts shows that behaviour is back",
)
sampler = setting(
    "--sampler",
    "distill.sampler",
    metavar="WHERE",
    help="engine that samples: inprocess, vllm, server, or URLs of servers",
)
ahead = setting(
    "--ahead",
    "distill.ahead",
    int,
    type=click.Choice(["0", "1"]),
    help="1: sample the next step's responses while the current step trains",
)
teacher_engine = setting(
    "--teacher-engine",
    "distill.teacher_engine",
    metavar="WHERE",
    help="the teacher's engine, as --sampler (for opd-topk, opd-sampled, and methods whose teacher writes)",
)

# Evaluation
tasks = setting(
    "--tasks",
    "eval.tasks",
    path,
    metavar="DIR",
    type=Place(),
    help="folder of tasks of your own: lm-eval's YAML files, or rows as TASK.jsonl",
)
chat = setting(
    "--chat",
    "eval.tasks_in_chat",
    is_flag=True,
    help="put lm-eval tasks into the chat template instead of plain text",
)
samples = setting(
    "--samples",
    "eval.samples",
    type=click.IntRange(1),
    metavar="N",
    help="answers to each prompt; more than one are sampled, not greedy",
)
limit = setting(
    "--limit",
    "eval.limit",
    type=click.IntRange(1),
    metavar="N",
    help="evaluate only N prompts of each suite, the same for every checkpoint",
)
behaviours = setting(
    "--behaviours",
    "eval.behaviours",
    lambda value: [name.strip() for name in value.split(",") if name.strip()],
    metavar="NAMES",
    help="further behaviours to judge: json, tools, refusals, multi-turn, calibration; several with commas",
)
task = setting(
    "--task",
    "eval.task_points",
    pairs,
    multiple=True,
    metavar="NAME=POINTS",
    help="a task of lm-eval that decides too, and the points that it may lose; may be repeated",
)
answering = setting(
    "--sampler",
    "eval.sampler",
    metavar="WHERE",
    help="engine that answers: inprocess, vllm, server, or URLs of servers",
)
ask_anew = setting(
    "--ask-anew",
    "eval.reuse",
    lambda typed: not typed,
    is_flag=True,
    help="ask every suite again, even where an earlier run recorded the same evaluation",
)

stop_loops = setting(
    "--stop-loops",
    "eval.stop_loops",
    is_flag=True,
    help="cut answers that only repeat themselves; do not compare such figures with published ones",
)


def steps(stage: str, flag: str = "--steps") -> Callable[[F], F]:
    return setting(flag, f"{stage}.steps", type=int, metavar="N", help="optimizer steps")


def learning_rate(stage: str, flag: str = "--learning-rate") -> Callable[[F], F]:
    return setting(
        flag,
        f"{stage}.optimizer.learning_rate",
        type=float,
        metavar="RATE",
        help="peak learning rate",
    )


def lora(stage: str) -> Callable[[F], F]:
    return setting(
        "--lora",
        f"{stage}.lora",
        adapter,
        type=click.IntRange(0),
        metavar="RANK",
        help="train a LoRA adapter of this rank; 0: train all weights",
    )


def epochs(flag: str) -> Callable[[F], F]:
    return setting(
        flag,
        "midtrain.epochs",
        type=float,
        metavar="N",
        help="passes over the documents, instead of a number of steps",
    )
