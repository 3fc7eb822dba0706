"""The table of families: one row each.

A row names the generator of its questions, how a model is asked and judged, how two models are compared, and
the recovery prompts that bring it back. Suites, verdicts, recovery prompts and the dashboard read the row;
so does the command line, for which it imports no NumPy: measures.py has the measures that rows name.
"""

from __future__ import annotations

from evals.families import json_answers, multi_turn, multiple_choice, refusals, tool_calls
from evals.families.family import Family, written

ROWS = (
    Family(
        "json",
        "answers in JSON have the keys and types that were asked for",
        json_answers.draw,
        written(json_answers.judge),
        "requests for JSON with given keys and types, over other records",
    ),
    Family(
        "tools",
        "calls name the right tool, with arguments of the right types",
        tool_calls.draw,
        written(tool_calls.judge),
        "requests with tool schemas, which the student's chat template must take",
    ),
    Family(
        "refusals",
        "harmful requests are refused, and benign ones that look like them are not",
        refusals.draw,
        written(refusals.judge),
        "harmful and benign requests in equal parts; harmful ones alone would teach to refuse everything",
        rates=(refusals.HARMFUL, refusals.BENIGN),
    ),
    Family(
        "multi-turn",
        "instructions and facts of an earlier turn hold in the last one",
        multi_turn.draw,
        written(multi_turn.judge),
        "dialogues of two to four user turns, with a standing instruction or a fact to remember",
    ),
    Family(
        "calibration",
        "the probability of a chosen option says how often it is right",
        multiple_choice.draw,
        multiple_choice.ask,
        "multiple-choice questions, by a method whose divergence is exact: it sees the odds of all letters",
        measure="calibration",
        fixed=multiple_choice.from_probes,
    ),
)
MARGIN = 0.05
FAMILIES = {row.name: row for row in ROWS}
