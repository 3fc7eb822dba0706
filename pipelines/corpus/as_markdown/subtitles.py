"""Write subtitles (SubRip, WebVTT) as a transcript: what is said, without numbers, times and styles."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import unescape
from typing import NamedTuple

from recovery.unspaced_scripts import between_lines

PAUSE = 2.0  # seconds behind which a new line begins
_TIME = r"(?:(\d+):)?(\d\d):(\d\d)[.,](\d{3})"
_TIMES = re.compile(rf"{_TIME}[ \t]+-->[ \t]+{_TIME}")
_BETWEEN = re.compile(r"\n(?:[ \t]*\n)+")
_VOICE = re.compile(r"<v(?:\.[\w.-]+)?[ \t]+([^<>]+)>")
_TAG = re.compile(r"</?[a-zA-Z][^<>]*>|<[\d:.]+>|\{\\[^{}]*\}")
_SPEAKER = re.compile(r"[^\W\d_][^:.!?]{0,40}: (?=\S)")
_DASH = re.compile(r"[-–—] ?(?=\S)")


class _Cue(NamedTuple):
    begin: float
    end: float
    lines: list[str]


def as_text(text: str) -> str:
    """Return what is said, a line for each speaker and behind each pause; a text without times as it is."""
    talk = _Talk([])
    for cue in _cues(text):
        talk.add(cue)
    return "\n".join(talk.lines) + "\n" if talk.lines else text


@dataclass
class _Talk:
    """What has been said so far."""

    lines: list[str]
    last: str = ""  # line of a cue
    speaker: str = ""
    until: float = 0.0

    def add(self, cue: _Cue) -> None:
        """Take a cue; a line that is still shown says nothing."""
        pauses = cue.begin - self.until > PAUSE
        for line in cue.lines:
            if line != self.last:
                self._say(line, pauses)
                pauses = False
            self.last = line
        self.until = cue.end

    def _say(self, line: str, pauses: bool) -> None:
        named = _SPEAKER.match(line)
        if named and named[0] == self.speaker and not pauses:
            line = line[named.end() :]
        elif named or _DASH.match(line):
            pauses, self.speaker = True, named[0] if named else ""
        if pauses or not self.lines:
            self.lines.append(line)
        else:
            self.lines[-1] += between_lines(self.lines[-1], line) + line


def _cues(text: str) -> Iterator[_Cue]:
    """Yield the blocks that have times: others are a header, a style or a remark."""
    for block in _BETWEEN.split(text.strip()):
        lines = block.split("\n")
        for behind, line in enumerate(lines[:2], 1):
            if times := _TIMES.match(line.strip()):
                told = map(_said, lines[behind:])
                yield _Cue(_seconds(times, 1), _seconds(times, 5), [line for line in told if line])
                break


def _said(line: str) -> str:
    """Return what a line of a cue says, with its speaker."""
    said = unescape(_TAG.sub("", _VOICE.sub(r"\1: ", line)))
    return said.replace("\xa0", " ").strip()


def _seconds(times: re.Match[str], first: int) -> float:
    hours, minutes, seconds, thousandths = (int(times[first + n] or 0) for n in range(4))
    return hours * 3600 + minutes * 60 + seconds + thousandths / 1000
