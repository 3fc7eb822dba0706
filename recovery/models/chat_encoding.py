"""Encode messages and documents as token ids, and decode them, with the tokenizer's chat template.

Only the template can produce control tokens. Text that spells one ("<|im_end|>" in a document or a message)
is encoded as ordinary characters, so no document can end a turn or open another. If no text spells one, the
ids equal those of `apply_chat_template`.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from recovery.errors import InputError
from recovery.models.control_tokens import parted, special_tokens, spells_end_of_text, turn_markers
from recovery.models.template_limits import TemplateTooLong, bounded, require_bounded_templates
from recovery.models.templates.continuation import behind_last, continued
from recovery.models.templates.fixed_day import with_fixed_day
from recovery.models.templates.system_turn import folded
from recovery.models.templates.tool_calls import CallForms
from recovery.models.thinking import closing_between, ends_inside, is_mark, split_thinking, written_between

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

Message = dict[str, Any]
NOTHING = re.compile(r"(?!)")


class ChatEncoder:
    """A tokenizer with fixed template arguments, the same for student, teacher and evaluation.

    Control-token spellings inside messages are replaced by private-use marks before the template is rendered.
    Then spellings in the rendered text come from the template and become control tokens; marks become text.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        template_args: dict[str, Any] | None = None,
        stop_ids: Iterable[int] = (),
    ) -> None:
        self.tokenizer = tokenizer
        require_bounded_templates(tokenizer)
        self.date = str(template_args["today"]) if template_args and "today" in template_args else None
        self.template_args = with_fixed_day(dict(template_args or {}))
        self.stop_ids = tuple(stop_ids)
        self.control = special_tokens(tokenizer) | self._markers()
        self.control_ids = frozenset(self.control.values())
        self._spellings = sorted(self.control, key=lambda spelling: (-len(spelling), spelling))
        self._pattern = re.compile("|".join(map(re.escape, self._spellings))) if self._spellings else NOTHING
        self._nonce = "".join(chr(0xF0000 + secrets.randbelow(0xFFFD)) for _ in range(4))

    def prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        """Encode the dialogue and the opening of the assistant's turn."""
        return self._ids(self.prompt_text(messages))

    def prompt_text(self, messages: Sequence[Message]) -> str:
        """Render what `prompt_ids` encodes; InputError if the template rejects the dialogue."""
        return self._render(self._guarded(messages), opening=True)

    def answer_pairs(
        self, messages: Sequence[Message], answers: Iterable[str]
    ) -> list[tuple[list[int], list[int]]]:
        """Encode a prompt and answers that are given to it, each as the model would write it there.

        What the template writes before an answer, such as the mark of a channel, belongs to the prompt, but a
        blank to the answer's first word. A thinking block that only the prompt opens is closed.
        """
        prompt = self.prompt_text(messages)
        opened = self._ids(prompt)
        return [self._answer_pair(prompt, opened, answer) for answer in answers]

    def _answer_pair(self, prompt: str, opened: list[int], answer: str) -> tuple[list[int], list[int]]:
        between = closing_between(prompt, answer) if self.opens_thinking else self._before_answer
        marks = between.rstrip(" ")
        blank = "" if answer[:1].isspace() else between[len(marks) :]
        before = continued(self._ids, prompt, opened, marks)
        whole = continued(self._ids, prompt + marks, before, blank + self._guard(answer))
        return before, whole[len(before) :]

    @cached_property
    def _before_answer(self) -> str:
        """Return what the template writes between a prompt and its answer, but for thinking."""
        turns = [{"role": role, "content": self._nonce} for role in ("user", "assistant")]
        with suppress(InputError):
            prompt, whole = self._render(turns[:1], opening=True), self._render(turns, opening=False)
            return written_between(prompt, whole, self._nonce)
        return ""

    @cached_property
    def takes_system_turn(self) -> bool:
        """Return whether the template renders a system turn, instead of rejecting or dropping it."""
        turns = [{"role": "system", "content": self._nonce}, {"role": "user", "content": "a"}]
        try:
            return self._nonce in self._render(turns, opening=True)
        except InputError:
            return False

    @cached_property
    def writes_date(self) -> bool:
        """Return whether the template renders the current date."""
        asked: list[str] = []

        def spy(form: str) -> str:
            asked.append(form)
            return ""

        with suppress(InputError):
            self._render([{"role": "user", "content": "a"}], opening=True, strftime_now=spy)
        return bool(asked)

    def dialogue_ids(self, messages: Sequence[Message]) -> tuple[list[int], list[bool]]:
        """Encode a dialogue up to the last turn's stop token; return a mask that is True on that turn.

        The part before the turn equals `prompt_ids` token for token, as when the answer was sampled.
        """
        if len(messages) < 2 or messages[-1].get("role") != "assistant":
            raise InputError("a training dialogue must end with an assistant message after another: add it")
        guarded = self._guarded(messages)
        prompt = self._render(guarded[:-1], opening=True)
        whole = self._render(guarded, opening=False)
        if not whole.startswith(prompt):  # the template renders past turns differently from the current one
            answer = guarded[-1].get("content") or ""
            whole = prompt + (closing_between(prompt, answer) if self.opens_thinking else "") + answer
        prompt_ids = self._ids(prompt)
        ids = self._cut_at_stop(
            continued(self._ids, prompt, prompt_ids, whole[len(prompt) :]), len(prompt_ids)
        )
        return ids, [position >= len(prompt_ids) for position in range(len(ids))]

    def text_ids(self, text: str) -> list[int]:
        """Encode plain text without control tokens, even if the text spells one."""
        return self._ids(self._guard(text))

    def text(self, ids: Iterable[int]) -> str:
        """Decode token ids without control tokens, except the marks around a thinking block."""
        kept = [i for i in map(int, ids) if i not in self._dropped_ids]
        return str(self.tokenizer.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def answer(self, ids: Iterable[int], prompt: Sequence[int] = ()) -> tuple[str, str]:
        """Decode a response as (thinking, answer); its prompt's end may have opened the thinking block."""
        end = behind_last(prompt, self._dropped_ids.difference(self.opening_ids))
        opened = ends_inside(self.text(end)) if len(end) < len(prompt) else self.opens_thinking
        return split_thinking(self.text(ids), opened)

    @cached_property
    def opens_thinking(self) -> bool:
        """Return whether the template opens a thinking block behind a user turn."""
        rendered = self._render([{"role": "user", "content": self._nonce}], opening=True)
        return ends_inside(rendered.rpartition(self._nonce)[2])

    @cached_property
    def _dropped_ids(self) -> frozenset[int]:
        return frozenset(i for spelling, i in self.control.items() if not is_mark(spelling))

    @cached_property
    def opening_ids(self) -> list[int]:
        """Return the control tokens (usually BOS alone) that the tokenizer puts before every text."""
        return self._added_around_text[0]

    @cached_property
    def turn_end_id(self) -> int | None:
        """Return the control token that the template writes after the last assistant answer, if any."""
        return self._control_after_answer([])

    @cached_property
    def document_end_id(self) -> int | None:
        """Return the token that ended a text in pretraining, if possible not the one that ends a chat turn.

        Candidates in order: the token that the tokenizer appends to a text; its EOS token, unless that ends a
        turn; the control token spelled like "end of text", stop tokens first; the EOS token.
        """
        appended = self._added_around_text[1]
        eos = self.tokenizer.eos_token_id
        if appended:
            return appended[-1]
        spelled = [i for spelling, i in self.control.items() if spells_end_of_text(spelling)]
        if eos is not None and (eos in spelled or eos != self.turn_end_id is not None):
            return int(eos)
        return min(spelled, key=lambda i: (i not in self.stop_ids, i), default=eos)

    @cached_property
    def _added_around_text(self) -> tuple[list[int], list[int]]:
        """Return the ids that the tokenizer adds before a text, and those that it adds after it."""
        plain = self.tokenizer("a", add_special_tokens=False, verbose=False)["input_ids"]
        whole = self.tokenizer("a", verbose=False)["input_ids"]
        for start in range(len(whole) - len(plain) + 1):
            if whole[start : start + len(plain)] == plain:
                return whole[:start], whole[start + len(plain) :]
        return [], []

    def _control_after_answer(self, following: list[Message]) -> int | None:
        """Return the first control token that the template writes after an assistant answer."""
        turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": self._nonce}, *following]
        with suppress(InputError):
            tail = self._render(turns, opening=False).rpartition(self._nonce)[2]
            if found := self._pattern.search(tail):
                return self.control[found.group()]
        return None

    @cached_property
    def _call_forms(self) -> CallForms:
        """Return the forms in which the template writes tool calls."""
        return CallForms(lambda turns: self._rendered(turns, opening=True))

    def _render(self, messages: Sequence[Message], *, opening: bool, **changes: Any) -> str:
        """Render messages with the template, their tool calls in the form that it takes."""
        return self._rendered(self._call_forms.applied(messages), opening=opening, **changes)

    def _rendered(self, messages: Sequence[Message], *, opening: bool, **changes: Any) -> str:
        """Render messages with the template; take tool schemas from the `tools` of any message."""
        turns = [{key: value for key, value in turn.items() if key != "tools"} for turn in messages]
        tools = [tool for turn in messages for tool in turn.get("tools") or ()]
        args = {**self.template_args, **({"tools": tools} if tools else {}), **changes}
        try:
            with bounded(self.tokenizer.name_or_path, (turns, tools)):
                rendered = self.tokenizer.apply_chat_template(
                    turns, tokenize=False, add_generation_prompt=opening, **args
                )
        except TemplateTooLong:
            raise
        except Exception as error:  # a template is a program: it may raise anything
            reason = " ".join(str(error).split()) or type(error).__name__
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise InputError(f"the chat template refuses a dialogue of [{roles}]: {reason}") from error
        return str(rendered)

    def _guarded(self, messages: Sequence[Message]) -> list[Message]:
        """Validate messages, mark control-token spellings, and fold the system turn if necessary."""
        for index, message in enumerate(messages):
            says = isinstance(message.get("content"), str) or message.get("tool_calls")
            if not isinstance(message.get("role"), str) or not says:
                raise InputError(
                    f"message {index}: expected a role and a content, both text: {message!r:.80}"
                )
        guarded: list[Message] = [self._guard_all(message) for message in messages]
        folds = bool(guarded) and guarded[0]["role"] == "system" and not self.takes_system_turn
        return folded(guarded) if folds else guarded

    def _guard_all(self, value: Any) -> Any:
        """Mark spellings in every string of a message; tool calls and tool schemas are nested."""
        if isinstance(value, str):
            return self._guard(value)
        if isinstance(value, dict):
            return {key: self._guard_all(entry) for key, entry in value.items()}
        return [self._guard_all(entry) for entry in value] if isinstance(value, list) else value

    def _guard(self, text: str) -> str:
        """Replace control-token spellings by marks that occur in no template, vocabulary or text."""
        return self._pattern.sub(lambda found: self._mark(found.group()), text)

    def _mark(self, spelling: str) -> str:
        return self._nonce + chr(0x100000 + self._spellings.index(spelling))

    def _ids(self, guarded: str) -> list[int]:
        if self._nonce not in guarded:
            return self.tokenizer(guarded, add_special_tokens=False, verbose=False)["input_ids"]
        ids = self._literal_ids(guarded)
        allowed = self._pattern.findall(guarded)
        if sum(i in self.control_ids and i != self.tokenizer.unk_token_id for i in ids) > len(allowed):
            ids = self._literal_ids(guarded, split=True)  # the model's own vocabulary holds the spelling
        return ids

    def _literal_ids(self, guarded: str, *, split: bool = False) -> list[int]:
        """Encode marks as text, and the remaining spellings, written by the template, as control tokens."""
        marks = re.compile(f"{self._nonce}(.)", re.DOTALL)
        if getattr(self.tokenizer, "backend_tokenizer", None) is None:
            return self._segment_ids(marks, guarded)
        aliased = self._pattern.sub(lambda found: self._alias(found.group()), guarded)
        gap = self._alias("") if split else ""
        literal = marks.sub(lambda found: parted(self._spellings[ord(found[1]) - 0x100000], gap), aliased)
        ids = self._twin.encode(literal, add_special_tokens=False).ids
        return [self._real.get(i, i) for i in ids if i != self._gap_id]

    def _segment_ids(self, marks: re.Pattern[str], guarded: str) -> list[int]:
        """Encode the pieces between control tokens separately, for tokenizers implemented in Python."""
        ids: list[int] = []
        for piece in re.split(f"({self._pattern.pattern})", guarded):
            if piece in self.control:
                ids.append(self.control[piece])
            elif piece:
                text = marks.sub(lambda found: self._spellings[ord(found[1]) - 0x100000], piece)
                ids += self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        return ids

    def _alias(self, spelling: str) -> str:
        return f"{self._nonce[::-1]}{self._mark(spelling)[-1] if spelling else chr(0x10FFFD)}"

    @cached_property
    def _twin(self) -> Tokenizer:
        """Return a copy of the tokenizer that reads control tokens as text and has aliases of them instead.

        Aliases keep the originals' stripping flags, so that the text around them is tokenized as before.
        """
        from tokenizers import AddedToken, Tokenizer

        spec = json.loads(self.tokenizer.backend_tokenizer.to_str())
        flags = {token["content"]: token for token in spec["added_tokens"]}
        for token in spec["added_tokens"]:
            token["special"] = token["special"] or token["id"] in self.control_ids
        twin = Tokenizer.from_str(json.dumps(spec))
        twin.no_truncation()
        twin.no_padding()
        twin.encode_special_tokens = True
        names = ("single_word", "lstrip", "rstrip", "normalized")
        kept = {s: {name: flags.get(s, {}).get(name, False) for name in names} for s in self._spellings}
        twin.add_tokens([AddedToken(self._alias(s), special=False, **kept[s]) for s in self._spellings])
        twin.add_tokens([AddedToken(self._alias(""), special=False, normalized=False)])
        return twin

    @cached_property
    def _real(self) -> dict[int, int]:
        """Return a map from the twin's alias ids to the tokenizer's ids."""
        pairs = ((self._twin.token_to_id(self._alias(s)), self.control[s]) for s in self._spellings)
        return {alias: real for alias, real in pairs if alias is not None}

    @cached_property
    def _gap_id(self) -> int | None:
        """Return the id of an empty separator token, which keeps the two halves of a spelling apart."""
        return self._twin.token_to_id(self._alias(""))

    def _markers(self) -> dict[str, int]:
        """Return the tokens by which the template tells turns apart; they count as control tokens."""
        rendered = {False: "", True: ""}
        for opening in rendered:
            with suppress(InputError):
                rendered[opening] = self._render([{"role": "user", "content": "a"}], opening=opening)
        return turn_markers(self.tokenizer, rendered[False], rendered[True], self.stop_ids)

    def _cut_at_stop(self, ids: list[int], start: int) -> list[int]:
        """Drop everything after the turn's stop token; add the token if the template writes none."""
        for position in range(start, len(ids)):
            if ids[position] in self.stop_ids:
                return ids[: position + 1]
        next_turn = self._control_after_answer([{"role": "user", "content": "a"}])
        ends = [i for i in (self.turn_end_id, next_turn, self.tokenizer.eos_token_id) if i in self.stop_ids]
        return ids + [*ends, *self.stop_ids][:1]


def stop_tokens(eos: int | Sequence[int] | None, encoder: ChatEncoder) -> tuple[int, ...]:
    """Return the ids that end an answer according to generation config, tokenizer and chat template."""
    configured = [eos] if isinstance(eos, int) else list(eos or ())
    wanted = [*configured, encoder.tokenizer.eos_token_id, encoder.turn_end_id]
    return tuple(dict.fromkeys(i for i in wanted if i is not None))
