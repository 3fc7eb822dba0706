"""Split a reasoning model's output into its thinking and its answer.

Known marks: tags such as <think> or [THINK], begin and end tokens such as <|START_THINKING|>, and channels
(<|channel|>analysis<|message|> ... <|channel|>final<|message|>), also where decoding dropped the control
tokens of the channels ("analysis...assistantfinal...").
"""

from __future__ import annotations

import re

_NAME = r"(?:\w+:)?(?:think(?:ing)?|thoughts?|reasoning)"
_OPENING = re.compile(
    rf"<{_NAME}>|\[{_NAME}\]|◁{_NAME}▷|<\|channel>"
    rf"|<\|(?:start|begin)_(?:of_)?{_NAME}\|>|<\|{_NAME}_(?:start|begin)\|>",
    re.IGNORECASE,
)
_CLOSING = re.compile(
    rf"</{_NAME}>|\[/{_NAME}\]|◁/{_NAME}▷|<channel\|>|<\|end_(?:of_)?{_NAME}\|>|<\|{_NAME}_end\|>",
    re.IGNORECASE,
)
_WRAPPED = re.compile(
    r"(?:<response>|<answer>|<\|start_response\|>)\s*(.*?)\s*(?:</response>|</answer>|<\|end_response\|>)?\s*",
    re.IGNORECASE | re.DOTALL,
)
_RESPONSE_START = re.compile(r"\s*<\|start_response\|>", re.IGNORECASE)
_RESPONSE_END = re.compile(r"<\|end_response\|>\s*\Z", re.IGNORECASE)
_FINAL_CHANNEL = re.compile(
    r"(?:<\|end\|>)?(?:<\|start\|>)?(?:assistant)?<\|channel\|>final\b[^<]*<\|message\|>"
)
_ANALYSIS_CHANNEL = re.compile(r"\s*(?:<\|start\|>assistant)?<\|channel\|>[^<]*(?:<\|message\|>)?")
_BARE_FINAL = re.compile(r"assistantfinal")
_BARE_ANALYSIS = re.compile(r"\s*analysis(?=[A-Z]|.*assistantfinal)", re.DOTALL)  # not "analysis of ..."
_CHANNELS = ((_ANALYSIS_CHANNEL, _FINAL_CHANNEL), (_BARE_ANALYSIS, _BARE_FINAL))
_CONTROL = re.compile(r"<\|(?:channel|message|(?:start|end)_response)\|>", re.IGNORECASE)


def is_mark(spelling: str) -> bool:
    """Return whether `split_thinking` reads this token, so that decoding must keep it."""
    return any(pattern.fullmatch(spelling) for pattern in (_OPENING, _CLOSING, _CONTROL))


def mentions_thinking(template: str) -> bool:
    """Return whether a chat template writes marks of thinking, or looks for them in answers."""
    return any(pattern.search(template) for pattern in (_OPENING, _CLOSING, _ANALYSIS_CHANNEL))


def ends_inside(prompt: str) -> bool:
    """Return whether the last thinking block that a prompt opens is still open at its end."""
    openings, closings = list(_OPENING.finditer(prompt)), list(_CLOSING.finditer(prompt))
    return bool(openings) and (not closings or closings[-1].start() < openings[-1].start())


def closes_thinking(answer: str) -> bool:
    """Return whether an answer closes its last thinking block, which its prompt may have opened."""
    closes = any(mark.search(answer) for mark in (_CLOSING, _FINAL_CHANNEL, _BARE_FINAL))
    return closes and not ends_inside(answer)


def closing_between(prompt: str, answer: str) -> str:
    """Return what closes the thinking block that a prompt leaves open, before an answer that closes none.

    Empty where the prompt leaves none open, or the answer closes it itself.
    """
    if not ends_inside(prompt) or _CLOSING.search(answer):
        return ""
    opening = [*_OPENING.finditer(prompt)][-1].group()
    return f"\n{_closing_of(opening)}\n\n"


def written_between(prompt: str, whole: str, answer: str) -> str:
    """Return what a template writes between a prompt and an answer, such as the mark of a final channel.

    A thinking block there counts as nothing."""
    between, found, _ = whole.removeprefix(prompt).partition(answer)
    thinks = _OPENING.search(between) or _CLOSING.search(between)
    return between if found and whole.startswith(prompt) and not thinks else ""


def _closing_of(opening: str) -> str:
    """Return the mark that closes what this one opens: </think> for <think>, <|end_x|> for <|start_x|>."""
    if not opening.startswith("<|"):
        return f"{opening[0]}/{opening[1:]}"
    if not opening.endswith("|>"):
        return f"<{opening[2:-1]}|>"  # <channel|> for <|channel>
    return re.sub("start|begin", lambda word: "END" if word[0].isupper() else "end", opening, flags=re.I)


def split_thinking(text: str, opened: bool = False) -> tuple[str, str]:
    """Return (thinking, answer); a text without thinking is all answer, unchanged but for a response's marks.

    `opened`: the prompt ended inside a thinking block. Thinking that is never closed leaves no answer ("").
    """
    for analysis, final in _CHANNELS:
        begin = analysis.match(text)
        if begin:
            return _split_at(text, begin.end(), final)
    return _split_tags(text, opened)


def _split_at(text: str, begin: int, border: re.Pattern[str]) -> tuple[str, str]:
    """Split at the last border: there may be several analysis and commentary messages before the answer."""
    borders = list(border.finditer(text))
    if not borders:
        return text[begin:].strip(), ""
    return text[begin : borders[-1].start()].strip(), text[borders[-1].end() :].lstrip()


def _split_tags(text: str, opened: bool) -> tuple[str, str]:
    rest = text.lstrip()
    if not _OPENING.match(rest):
        if not (opened or _closes_first(text)):
            return "", _unwrapped(text)
        rest = "<think>" + rest  # the prompt ends with this mark, in whatever spelling
    thoughts: list[str] = []
    while opening := _OPENING.match(rest):
        closing = _CLOSING.search(rest, opening.end())
        end = closing.start() if closing else len(rest)
        thoughts.append(rest[opening.end() : end].strip())
        rest = rest[closing.end() :].lstrip() if closing else ""
    wrapped = _WRAPPED.fullmatch(rest)
    return "\n\n".join(filter(None, thoughts)), wrapped[1] if wrapped else rest


def _unwrapped(text: str) -> str:
    """Return a response without the marks around it, as Cohere's models write them without thinking too."""
    start = _RESPONSE_START.match(text)
    return _RESPONSE_END.sub("", text[start.end() :]).strip() if start else text


def _closes_first(text: str) -> bool:
    """Return whether the text closes thinking that it does not open: a recorded answer without its prompt."""
    closing = _CLOSING.search(text)
    return closing is not None and not _OPENING.search(text, 0, closing.start())
