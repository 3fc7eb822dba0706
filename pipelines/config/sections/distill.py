"""`distill`: the method, its data, its engines, and when to stop."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from pipelines.config.sections.base import AUTO, Fitted, Named, Section
from pipelines.config.sections.training import SPLIT_DOCUMENTS, LoraConfig, OptimizerConfig, fitted_adapter
from recovery.methods.choices import TEACHER_SIGNALS
from recovery.methods.method import Method
from recovery.methods.table import with_dials


class StopConfig(Section):
    """Stop a distillation early once behaviour is back: twice in a row, on prompts used for nothing else."""

    every: int = Field(default=10, ge=1, description="steps from look to look")
    prompts: int = Field(default=200, ge=1, description="how many prompts a look asks")
    margin: float = Field(default=0.05, gt=0, lt=1, description="how much worse than clean counts as back")
    probe: Named = Field(
        default=None,
        description="FILE in IFEval's format, other than the evaluation's; default: recovery prompts that "
        "name their instructions, then held out of training",
    )


class DistillConfig(Section):
    """The student samples, the teacher scores, the objective corrects."""

    method: str = Field(default="opd", description="a row of `recover methods`")
    dials: dict[str, Any] = Field(
        default_factory=dict, description="dials of the method that differ from its row"
    )
    prompts: str = Field(min_length=1, description="FILE, hub:NAME:SPLIT:FIELD, self, or microworld")
    pairs: Named = Field(
        default=None,
        description="rows of prompt and response, to learn from or to show; default: from the prompts",
    )
    context: Named = Field(
        default=None,
        description="what the teacher sees and the student does not: a text, or a FILE of text or of "
        "examples (.jsonl); default: each prompt's own field",
    )
    context_examples: int = Field(default=1, ge=1, description="examples that the teacher sees at once")
    reward: Named = Field(default=None, description="exact, ifeval, module:function or FILE.py:function")
    routes: dict[str, str] = Field(
        default_factory=dict, description="checkpoint of each teacher that the prompts name in `route`"
    )
    sampler: str = Field(
        default="inprocess",
        description="engine that samples: inprocess, vllm (in this process), server (vLLM's, started with "
        "the run), or URLs of vLLM servers",
    )
    teacher_engine: str = Field(
        default="inprocess",
        description="the teacher's engine; other than inprocess for opd-topk, opd-sampled, and methods whose "
        "teacher writes",
    )
    offload_teacher: bool = Field(
        default=False,
        description="the teacher's layers rest in the host's memory and come to the GPU while they compute",
    )
    ahead: int = Field(
        default=0,
        ge=0,
        le=1,
        description="1: the next answers are written while these are scored and trained on, one step off; "
        "wants a sampler other than inprocess",
    )
    steps: int = Field(default=100, ge=1, description="batches of samples")
    more_steps: int = Field(
        default=0,
        ge=0,
        description="further ones at most, while the divergence from the teacher falls by a twentieth from "
        "half of `steps` to the next half; of methods without a teacher's signal none",
    )
    prompts_per_step: int = Field(default=64, ge=1, description="different prompts in a batch")
    samples_per_prompt: int = Field(
        default=4,
        ge=1,
        description="answers of the student to each; of pairs, prompts_per_step times as many are read in a "
        "step",
    )
    max_new_tokens: int = Field(default=2048, ge=1, description="longest answer")
    stop_loops: bool = Field(default=False, description="end an answer that only repeats itself")
    microbatch_tokens: Fitted = Field(
        default=AUTO, description="tokens in one forward pass; more are accumulated; auto: by the memory"
    )
    longest_row: Fitted = Field(
        default=AUTO,
        description="tokens of a prompt and an answer of full length; longer prompts are left out; auto: by "
        "the memory",
    )
    optimizer: OptimizerConfig = Field(description="how the weights are changed")
    lora: LoraConfig | Literal["auto"] | None = Field(
        default=None,
        description="train an adapter; auto: where the memory asks for it; default: all weights, or the "
        "student's own adapter",
    )
    freeze_embeddings: bool = Field(default=False, description="train neither the embeddings nor the head")
    save_every: int = Field(
        default=20, ge=0, description="steps between resumable states; 0: only at the end"
    )
    preflight: bool = Field(default=True, description="check student and teacher before the first step")
    overlap: Literal["drop", "weight", "keep"] = Field(
        default="drop",
        description="prompts about what the student was taught and the teacher does not know: drop them, "
        "weight them less, or keep them",
    )
    overlap_weight: float = Field(
        default=0.2, gt=0, lt=1, description="of each token of such a prompt's answer, with overlap: weight"
    )
    merge: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="share of the teacher's weights that is mixed into the student's before the first step",
    )
    merge_of: Literal["all", "embeddings"] = Field(
        default="all", description="which weights that is; embeddings: those and the head alone"
    )
    rehearsal: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="share of the tokens read, prompts not counted, that are the taught documents, read "
        "again: 0.6 of them the newest ones, the rest all earlier ones",
    )
    rehearsal_questions: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="share of those tokens that are questions made of the documents' own sentences, in chat",
    )
    split_documents: float = SPLIT_DOCUMENTS
    tripwire_every: int = Field(
        default=5, ge=0, description="steps between looks at gaps in the new documents; 0: never"
    )
    tripwire_share: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="stop when their answers' probability falls below this share of what it was",
    )
    stop: StopConfig | None = Field(
        default=None, description="stop when behaviour is back; default: all steps are taken"
    )

    @model_validator(mode="after")
    def _room_for_a_prompt(self) -> DistillConfig:
        if 0 < self.longest_row <= self.max_new_tokens:
            raise ValueError("longest_row holds no prompt beside max_new_tokens: raise it, or lower those")
        return self

    @model_validator(mode="after")
    def _rate_for_more_steps(self) -> DistillConfig:
        if self.most_steps > self.steps and self.optimizer.schedule != "constant":
            raise ValueError(
                f"more_steps: the rate of a {self.optimizer.schedule} schedule ends with the last step, "
                "which is not known: set optimizer.schedule to constant, or more_steps to 0"
            )
        return self

    @property
    def most_steps(self) -> int:
        """The steps, with those that are taken only while the student comes nearer to its teacher."""
        further = self.more_steps if self.resolved_method().signal in TEACHER_SIGNALS else 0
        return self.steps + further

    @property
    def adapter(self) -> LoraConfig | None:
        return fitted_adapter(self.lora)

    @property
    def teaches_in_process(self) -> bool:
        """Whether the teacher is a model of this process, not an engine's."""
        return self.teacher_engine == "inprocess"

    @property
    def reads_prompts(self) -> bool:
        """Whether the prompts are read: not where the method reads pairs alone, and they are given."""
        return not (self.pairs and self.resolved_method().state_kind == "data")

    def resolved_method(self) -> Method:
        """Return the row of the table of methods, with the dials that are set."""
        return with_dials(self.method, self.dials)
