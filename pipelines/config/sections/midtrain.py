"""`midtrain`: which documents are read, how they are mixed, how they are learned."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from pipelines.config.sections.base import AUTO, Fitted, Section
from pipelines.config.sections.training import SPLIT_DOCUMENTS, LoraConfig, OptimizerConfig, fitted_adapter
from pipelines.corpus.reading.formats import Limits
from recovery.methods.method import Method
from recovery.methods.table import get, with_dials


class Mix(Section):
    """Shares of the tokens that midtraining sees; they add up to one."""

    new: float = Field(default=1.0, gt=0, le=1, description="the documents given now")
    earlier: float = Field(
        default=0.0, ge=0, lt=1, description="documents of earlier cycles (none yet: goes to the others)"
    )
    chat: float = Field(
        default=0.0, ge=0, lt=1, description="chat prompts answered by the clean model itself"
    )
    augmented: float = Field(
        default=0.0, ge=0, lt=1, description="the new documents retold (`recover augment`)"
    )
    questions: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="gap questions made of the documents' own sentences, of new and of earlier ones as "
        "`new` and `earlier` stand to each other",
    )

    @property
    def at_first(self) -> Mix:
        """The mix of a first midtraining: there are no earlier documents."""
        return self.without("earlier")

    def without(self, source: str) -> Mix:
        """Return the mix without a source of which there is nothing: its share goes to the others."""
        return self.with_part(source, 0.0)

    def with_part(self, source: str, part: float) -> Mix:
        """Return the mix with a part of a source's share; the rest of it goes to the others."""
        weights = self.model_dump()
        weights[source] *= part
        total = sum(weights.values())  # not computed from 1, which rounding may make smaller than a share
        return Mix(**{name: weight / total for name, weight in weights.items()})

    @property
    def earlier_questions(self) -> float:
        """The part of `questions` that asks about earlier documents, where there are any."""
        return self.questions * self.earlier / (self.new + self.earlier)

    @model_validator(mode="after")
    def _adds_up(self) -> Mix:
        total = sum(self.model_dump().values())
        if abs(total - 1) > 1e-6:
            raise ValueError(f"the shares add up to {total:g}, not to 1")
        return self


class ReadingConfig(Section):
    """What of a folder of documents is read, within which limits; the manifest lists what is skipped."""

    strict: bool = Field(default=False, description="stop at the first file that cannot be read")
    largest_text_mib: int = Field(
        default=Limits.largest_text_mib,
        ge=1,
        description="largest text, jsonl or csv file, unpacked; they are streamed",
    )
    largest_file_mib: int = Field(
        default=Limits.largest_file_mib,
        ge=1,
        description="largest html, man, latex, ipynb, pdf, office, epub file, and the most text it may give",
    )
    seconds_per_file: int = Field(
        default=Limits.seconds_per_file,
        ge=1,
        description="processor time for 64 MiB of such a file's text, parsed by a limited process",
    )
    memory_mib: int = Field(default=Limits.memory_mib, ge=256, description="memory of that process")
    workers: int = Field(default=Limits.workers, ge=0, description="such processes; 0: one a core, at most 4")
    near_duplicates: Literal["keep", "skip"] = Field(
        default="keep", description="files nearly equal to an earlier one; reported in either case"
    )
    leave_out: list[str] = Field(
        default_factory=list,
        description="what of the folder is not read: paths or patterns, as seen from it; one without a slash "
        "names files and folders at any depth",
    )

    @property
    def limits(self) -> Limits:
        shared = self.model_dump(exclude={"strict", "near_duplicates", "leave_out"})
        keep = self.near_duplicates == "keep"
        return Limits(**shared, keep_near_duplicates=keep, leave_out=tuple(self.leave_out))


CHAT_TIMES = 4  # that an answer of the chat share is read, where there are prompts for more


class MidtrainConfig(Section):
    """Teaching documents: as text, or by answers of the clean model that sees them."""

    method: Literal["text", "passage"] = Field(
        default="text",
        description="text: next-token training on the documents; passage: questions about them, which the "
        "clean model answers with the passage in view and the student learns without",
    )
    dials: dict[str, Any] = Field(
        default_factory=dict, description="with passage: dials that differ from this row of `recover methods`"
    )
    steps: int | None = Field(
        default=None, ge=1, description="optimizer steps; or give epochs, or neither: fitted"
    )
    epochs: float | None = Field(
        default=None, gt=0, description="passes over the new documents; or give steps"
    )
    tokens_per_step: Fitted = Field(default=AUTO, description="of one optimizer step; auto: by the corpus")
    row_tokens: Fitted = Field(
        default=AUTO,
        description="of a row, at least 8; documents share one where the model can keep them apart",
    )
    microbatch_tokens: Fitted = Field(
        default=AUTO, description="tokens in one forward pass; more are accumulated; auto: by the memory"
    )
    optimizer: OptimizerConfig = Field(description="how the weights are changed")
    reading: ReadingConfig = Field(default=ReadingConfig(), description="how documents are read")
    mix: Mix = Field(default=Mix(), description="where the tokens come from")
    chat_prompts: int = Field(
        default=512,
        ge=1,
        description="how many prompts the clean model answers for the chat share; more where it would read "
        "each answer more than four times",
    )
    replay_tokens: int | None = Field(
        default=None,
        ge=1,
        description="most tokens of earlier documents to draw from, alike from every cycle; default: as "
        "many as are read",
    )
    split_documents: float = SPLIT_DOCUMENTS
    hold_out: float = Field(
        default=0.02,
        ge=0,
        le=0.2,
        description="share of the documents' sentences, at most, that is not trained on where many prompts "
        "mention what they are about: by these recovery tells what of it is new",
    )
    forecast_every: int = Field(
        default=10, ge=0, description="steps between looks at the KL to the clean model; 0: never"
    )
    lora: LoraConfig | Literal["auto"] | None = Field(
        default=None,
        description="train an adapter; auto: where the memory asks for it; default: all weights, or the "
        "student's own adapter",
    )
    freeze_embeddings: bool = Field(default=False, description="train neither the embeddings nor the head")
    save_every: int = Field(
        default=50, ge=0, description="steps between resumable states; 0: only at the end"
    )

    @property
    def adapter(self) -> LoraConfig | None:
        return fitted_adapter(self.lora)

    def resolved_method(self) -> Method:
        """Return the row of the table of methods that it trains by, with the dials that are set."""
        return get("sft") if self.method == "text" else with_dials(self.method, self.dials)

    @model_validator(mode="after")
    def _one_length(self) -> MidtrainConfig:
        if self.steps is not None and self.epochs is not None:
            raise ValueError("give either steps or epochs")
        if 0 < self.row_tokens < 8:
            raise ValueError("row_tokens: give 8 or more, or auto")
        return self
