"""`eval`: the questions of an evaluation and the margins of its verdict."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, field_validator

from pipelines.config.sections.base import AUTO, Fitted, Named, Section

Points = Annotated[float, Field(gt=0, lt=100)]


class EvalConfig(Section):
    """The questions of an evaluation, and the margins of the verdict."""

    ifeval: str = Field(
        default="google/IFEval", min_length=1, description="FILE in IFEval's format, or the hub data set"
    )
    further_prompts: Annotated[int, Field(ge=0)] | str = Field(
        default=1000,
        description="asked in a cycle where behaviour is underpowered on IFEval's prompts: so many generated "
        "ones, or a FILE in IFEval's format; 0: none",
    )
    probes: Named = Field(default=None, description="FILE of knowledge and retention probes")
    max_new_tokens: int = Field(default=1280, ge=1, description="longest answer to an IFEval prompt")
    probe_max_new_tokens: int = Field(default=64, ge=1, description="longest answer to a probe")
    batch_size: Fitted = Field(default=AUTO, description="prompts answered at once; auto: by the memory")
    tasks: Named = Field(
        default=None, description="FOLDER with lm-eval task files, or rows of known tasks as NAME.jsonl"
    )
    tasks_in_chat: bool = Field(default=False, description="lm-eval tasks in the chat template, not as text")
    samples: int = Field(default=1, ge=1, description="answers to each prompt; several are sampled")
    limit: int | None = Field(
        default=None, ge=1, description="ask a fixed random sample of so many prompts of each suite"
    )
    earlier_questions: int = Field(
        default=480,
        ge=1,
        description="most questions about what all earlier cycles taught, in chat and as texts to go on with "
        "together, alike many of each; of more cycles, the newest are asked about",
    )
    temperature: float = Field(default=1.0, gt=0, description="of several sampled answers; one is greedy")
    sampler: str = Field(default="inprocess", description="engine that answers, as in distill")
    stop_loops: bool = Field(
        default=False,
        description="end an answer that only repeats itself; not for comparison with published scores",
    )
    reuse: bool = Field(
        default=True,
        description="in a cycle, pilot or `recover locate`, take a suite's recorded scores where checkpoint, "
        "questions, settings and software are the same; false: ask anew",
    )
    open_book: bool = Field(
        default=False, description="also ask the clean model with each probe's passage in front: the ceiling"
    )
    margin: float = Field(
        default=0.03, gt=0, lt=1, description="how much worse still counts as recovered, and as kept"
    )
    retention_margin: float = Field(default=0.10, gt=0, lt=1, description="the same for retention")
    update_lead: float = Field(
        default=0.70, gt=0, lt=1, description="how far new answers to changed facts must lead over old ones"
    )
    behaviours: tuple[str, ...] = Field(
        default=(), description="families of behaviour to judge too, such as [json, refusals]"
    )
    behaviours_items: int = Field(default=500, ge=1, description="questions of each such family")
    behaviours_margin: float = Field(
        default=0.05, gt=0, lt=1, description="how much worse still counts as kept, in each family"
    )
    task_points: dict[str, Points] = Field(
        default={},
        description="lm-eval tasks that decide a cycle too, each with the points that it may lose, such as "
        "{hellaswag: 3, my_task: 2}",
    )

    @field_validator("further_prompts", mode="before")
    @classmethod
    def _number_as_typed(cls, value: Any) -> Any:
        if isinstance(value, str) and not value.strip():
            raise ValueError("a number of prompts or a file is expected")
        return int(value) if isinstance(value, str) and value.isdecimal() else value

    @property
    def further_file(self) -> str | None:
        """The file of further prompts; None where there are none, or a number that is still to be written."""
        return self.further_prompts if isinstance(self.further_prompts, str) else None

    def margins(self) -> dict[str, float]:
        """Return the margin of every axis of the verdict; a lead is a negative one."""
        from evals.verdict import margins_of

        return margins_of(self.model_dump())
