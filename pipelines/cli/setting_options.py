"""Options that override one setting of recover.yaml, each declared in one place by the setting's key.

What was typed is collected in `session.changes` ({"distill.steps": 20}); `settings.changed` applies it.
To add such an option, add a line here and name it above the commands that take it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from pipelines.cli.options import F, Session

Read = Callable[[Any], Any]


class SettingOption(click.Option):
    """An option for one key of recover.yaml; `read` turns what was typed into the setting's value."""

    def __init__(self, *args: Any, key: str, read: Read, **attributes: Any) -> None:
        super().__init__(*args, expose_value=False, callback=self._collect, **attributes)
        self.key, self.read = key, read

    def _collect(self, ctx: click.Context, param: click.Parameter, value: Any) -> None:
        if value not in (None, ()):
            ctx.ensure_object(Session).changes[self.key] = self.read(value)


def setting(flag: str, key: str, read: Read = lambda value: value, **attributes: Any) -> Callable[[F], F]:
    """Add an option that overrides the setting `key`."""
    attributes = {"default": None} | attributes
    return click.option(flag, cls=SettingOption, key=key, read=read, **attributes)


def file(value: str) -> str:
    """A file by its full path, so that the run can be resumed from any folder; any other source as it is."""
    from pipelines.runs.workspace import placed

    return placed(value)


def reward_source(value: str) -> str:
    """A reward's FILE.py by its full path; any other reward as it is."""
    from pipelines.config.settings import anchored_changes

    return str(anchored_changes({"distill.reward": value}, Path.cwd())["distill.reward"])


def path(value: Path) -> str:
    return str(value.absolute())


def pairs(value: str | tuple[str, ...]) -> dict[str, str]:
    """NAME=VALUE, several with commas or by repeating the option."""
    from pipelines.config.settings import parse_pairs

    return parse_pairs(value if isinstance(value, str) else ",".join(value))


def shares(value: str) -> dict[str, Any]:
    """Shares of the mix; a source that is not named gets nothing."""
    return {"new": 0.0, "earlier": 0.0, "chat": 0.0, "augmented": 0.0, **pairs(value)}


def adapter(rank: int) -> dict[str, Any] | None:
    """An adapter of this rank, scaled by it; none for 0."""
    return {"rank": rank, "alpha": None} if rank else None


def enabled(flag: bool) -> dict[str, Any] | None:
    """A section with its defaults, or with what recover.yaml says."""
    return {} if flag else None


OVERLAP = click.Choice(["drop", "weight", "keep"])
SOURCE = "FILE, hub:NAME:SPLIT:FIELD, self (written by the clean model), or microworld"

seed = setting("--seed", "seed", type=int, help="default: recover.yaml")
prompts = setting("--prompts", "distill.prompts", file, help=f"{SOURCE} (default: recover.yaml)")
ifeval = setting("--ifeval", "eval.ifeval", file, help="FILE in IFEval's format (default: recover.yaml)")
probes = setting("--probes", "eval.probes", file, help="FILE of knowledge and retention probes")

# Midtraining
mix = setting(
    "--mix", "midtrain.mix", shares, help="shares of the tokens, as in new=0.6,earlier=0.3,chat=0.1"
)
strict = setting(
    "--strict", "midtrain.reading.strict", is_flag=True, help="stop at the first file that cannot be read"
)
freeze_embeddings = setting(
    "--freeze-embeddings/--train-embeddings",
    "midtrain.freeze_embeddings",
    help="whether midtraining leaves embeddings and head as they are (default: recover.yaml)",
)

# Distillation
method = setting("--method", "distill.method", help="a row of `recover methods` (default: recover.yaml)")
dials = setting(
    "--set", "distill.dials", pairs, multiple=True, metavar="DIAL=VALUE", help="set a dial of the method"
)
overlap = setting("--overlap", "distill.overlap", type=OVERLAP, help="prompts about what was just taught")
merge = setting(
    "--merge",
    "distill.merge",
    type=float,
    metavar="SHARE",
    help="of the teacher's weights, mixed in before the first step",
)
rehearsal = setting(
    "--rehearsal",
    "distill.rehearsal",
    type=float,
    metavar="SHARE",
    help="of the tokens: taught documents, trained on again",
)
tripwire = setting(
    "--tripwire",
    "distill.tripwire_share",
    type=float,
    metavar="SHARE",
    help="stop when less of the new knowledge is left",
)
response_pairs = setting(
    "--pairs",
    "distill.pairs",
    file,
    help="likewise, rows with a response: for data states, and to show as examples",
)
context = setting(
    "--context", "distill.context", file, metavar="TEXT|FILE", help="what only the teacher sees"
)
reward = setting(
    "--reward",
    "distill.reward",
    reward_source,
    metavar="NAME",
    help="exact, ifeval, module:function or FILE.py:function",
)
routes = setting(
    "--route",
    "distill.routes",
    pairs,
    multiple=True,
    metavar="NAME=CHECKPOINT",
    help="the teacher of the prompts with that route",
)
stop_when_recovered = setting(
    "--stop-when-recovered",
    "distill.stop",
    enabled,
    is_flag=True,
    help="stop once behaviour is back on a probe set",
)
sampler = setting(
    "--sampler",
    "distill.sampler",
    metavar="WHERE",
    help="engine that samples: inprocess, vllm, server, or servers' URLs",
)
ahead = setting(
    "--ahead",
    "distill.ahead",
    type=click.IntRange(0, 1),
    metavar="0|1",
    help="1: sample the next answers while these are trained on",
)
teacher_engine = setting(
    "--teacher-engine",
    "distill.teacher_engine",
    metavar="WHERE",
    help="engine that scores, likewise (opd-topk, opd-sampled)",
)

# Evaluation
tasks = setting(
    "--tasks",
    "eval.tasks",
    path,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="local tasks: lm-eval's YAML files, or rows as TASK.jsonl",
)
chat = setting(
    "--chat", "eval.tasks_in_chat", is_flag=True, help="lm-eval tasks in the chat template, not as plain text"
)
samples = setting(
    "--samples", "eval.samples", type=click.IntRange(1), help="answers to each prompt; several are sampled"
)
limit = setting(
    "--limit",
    "eval.limit",
    type=click.IntRange(1),
    metavar="N",
    help="only N prompts of each suite, the same for every checkpoint",
)
behaviours = setting(
    "--behaviours",
    "eval.behaviours",
    lambda value: [name.strip() for name in value.split(",")],
    metavar="NAMES",
    help="families to judge too: json, tools, refusals, multi-turn, calibration; several with commas",
)
answering = setting(
    "--sampler",
    "eval.sampler",
    metavar="WHERE",
    help="engine that answers: inprocess, vllm, server, or servers' URLs",
)

stop_loops = setting(
    "--stop-loops",
    "eval.stop_loops",
    is_flag=True,
    help="end answers that only repeat themselves; not for figures to compare with published ones",
)


def steps(stage: str) -> Callable[[F], F]:
    return setting("--steps", f"{stage}.steps", type=int, help="default: recover.yaml")


def learning_rate(stage: str) -> Callable[[F], F]:
    return setting(
        "--learning-rate", f"{stage}.optimizer.learning_rate", type=float, help="default: recover.yaml"
    )


def lora(stage: str) -> Callable[[F], F]:
    return setting(
        "--lora",
        f"{stage}.lora",
        adapter,
        type=click.IntRange(0),
        metavar="RANK",
        help="train an adapter of this rank; 0: none",
    )


epochs = setting(
    "--epochs", "midtrain.epochs", type=float, help="passes over the documents, instead of steps"
)
