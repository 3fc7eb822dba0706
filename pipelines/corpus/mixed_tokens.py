"""Mix the sources of each step by their shares of the tokens, and pack their sequences into rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from pipelines.config.fitted import fit_beside_earlier
from pipelines.config.sections.midtrain import MidtrainConfig, Mix
from pipelines.corpus.sentence_splits import SentenceSplits
from pipelines.corpus.token_file import Tokens, TokenStream
from recovery.batches.rollouts import Dialogue, Rollouts
from recovery.counted import counted
from recovery.distributed import world
from recovery.training.updater import Microbatch

EARLIER_QUESTIONS = "earlier questions"  # a source within the mix's share of questions
DOCUMENTS = ("new", "earlier")  # sources that may be split; chats never are


def in_rows(sequences: list[Dialogue], pad_id: int, longest: int, packs: bool) -> Rollouts:
    """Pack sequences into shared rows where the model keeps them apart, else give each a row."""
    if packs:
        return Rollouts.packed(sequences, pad_id, longest)
    return Rollouts.from_dialogues(sequences, pad_id)


def shares(mix: Mix, sources: Mapping[str, object]) -> dict[str, float]:
    """Return each source's share of the tokens; an empty source's share goes to the others."""
    wanted = mix.model_dump()
    if sources.get(EARLIER_QUESTIONS):
        wanted["questions"] -= mix.earlier_questions
        wanted[EARLIER_QUESTIONS] = mix.earlier_questions
    return of_present(wanted, sources)


def of_present(wanted: Mapping[str, float], sources: Mapping[str, object]) -> dict[str, float]:
    """Return the shares of the sources that hold anything, among which those of empty ones are divided."""
    present = {name: share for name, share in wanted.items() if share and sources.get(name)}
    return {name: share / sum(present.values()) for name, share in present.items()}


def fitted_to_sources(
    settings: MidtrainConfig, sources: Mapping[str, Tokens | Sequence[Dialogue]], context: int | None = None
) -> MidtrainConfig:
    """Return the settings with every number set, and a mix that reads no earlier documents too often."""
    new, earlier = (_total(sources.get(name, [])) for name in DOCUMENTS)
    return fit_beside_earlier(settings, new, earlier, lambda mixed: shares(mixed.mix, sources), context)


def _total(source: Tokens | Sequence[Dialogue]) -> int:
    return source.total if isinstance(source, Tokens) else sum(len(ids) for ids, _ in source)


class Planned(NamedTuple):
    """What a training reads of a source."""

    tokens: int
    row: int  # tokens after which a sequence is cut


def planned(
    settings: MidtrainConfig,
    sources: Mapping[str, Tokens | Sequence[Dialogue]],
    name: str,
    context: int | None = None,
) -> Planned:
    """Return what the training reads of a source that is to come beside those that are there."""
    some: list[Dialogue] = [([], [])]  # an empty source would have no share
    mixed = {**sources, name: some}
    fitted = fitted_to_sources(settings, mixed, context)
    share = shares(fitted.mix, mixed)[name]
    return Planned(round((fitted.steps or 0) * fitted.tokens_per_step * share), fitted.row_tokens)


class MixedTokens:
    """The data of each step, mixed by shares; they depend on (seed, step) alone."""

    def __init__(
        self,
        sources: Mapping[str, Tokens | Sequence[Dialogue]],
        settings: MidtrainConfig,
        pad_id: int,
        seed: int,
        packs: bool = True,
        splits: SentenceSplits | None = None,
    ) -> None:
        wanted = settings.mix.model_dump()
        self.shares = shares(settings.mix, sources)
        self.missing = [name for name, share in wanted.items() if share and name not in self.shares]
        self.streams = {
            name: TokenStream(
                sources[name],
                self._longest(name, settings),
                f"{seed}:{name}",
                splits if name in DOCUMENTS else None,
            )
            for name in self.shares
        }
        self.settings = settings
        self.pad_id = pad_id
        self.packs = packs
        self.steps = settings.steps or 0  # of a training: `fitted_to_sources` has set them

    def _longest(self, name: str, settings: MidtrainConfig) -> int:
        """Return the tokens after which a source's sequences are cut: those of a row.

        The largest source's are cut at its tokens of an update at the latest, so that one begins in each.
        Chats are cut too, though what is behind the first piece lacks its prompt: read whole in short rows,
        one fills some updates and is absent from others, and a real model moved further from the clean one.
        """
        if self.shares[name] < max(self.shares.values()):
            return settings.row_tokens
        return min(settings.row_tokens, max(1, int(self.shares[name] * settings.tokens_per_step)))

    def summary(self, asked: Mix | None = None) -> str:
        """Return how much of each source is read how often; `asked` is the mix before it was fitted."""
        parts = [self._part(name, stream.total) for name, stream in self.streams.items()]
        length = f"{counted(self.steps, 'step')} of {self.settings.tokens_per_step:,} tokens"
        none = f"; no {' or '.join(self.missing)} yet: its share goes to the others" if self.missing else ""
        if asked and asked != self.settings.mix:
            none += f"; of earlier there is too little for {asked.earlier:.0%}: the rest goes to the others"
        return f"  mix          {', '.join(parts)}; {length}{none}"

    def _part(self, name: str, total: int) -> str:
        share = self.shares[name]
        passes = share * self.steps * self.settings.tokens_per_step / total
        return f"{name} {share:.0%} (of {total:,} tokens, {passes:,.1f} times)"

    def updates(self, step: int) -> Iterator[list[Microbatch]]:
        """Yield the microbatches of one optimizer update."""
        sequences = []
        for name, stream in self.streams.items():
            per_step = self.shares[name] * self.settings.tokens_per_step
            sequences += stream.between(round(per_step * (step - 1)), round(per_step * step))
        rows = in_rows(sequences, self.pad_id, self.settings.row_tokens, self.packs)
        yield [Microbatch(part) for part in over_processes(rows, self.settings.microbatch_tokens)]


def over_processes(rows: Rollouts, most: int) -> list[Rollouts]:
    """Split rows into microbatches of at most `most` tokens, of which each process has about as much."""
    return rows.split(rows.limit_over(world(), most))
