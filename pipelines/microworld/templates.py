"""Augment microworld documents by patterns; its model is too small to write.

Its fact sentences are read by the patterns that they were made from and asked about in every phrasing that
the clean model was made with; the held-out phrasing of the probes is not among them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pipelines.corpus.sentences import sentences
from pipelines.microworld.words import ATTRIBUTES, Attribute

NAME, VALUE = r"(?P<n>[A-Z][a-z]+ [A-Z][a-z]+)", r"(?P<v>[A-Za-z]+)"


def questions(texts: Sequence[str]) -> Iterator[dict[str, str]]:
    """Ask each fact that the documents state in every training phrasing."""
    found = {fact: None for text in texts for fact in facts(text)}
    by_name = {attribute.name: attribute for attribute in ATTRIBUTES}
    for name, kind, value in found:
        attribute = by_name[kind]
        for question in attribute.questions:
            yield {
                "kind": "qa",
                "source": name,
                "prompt": question.format(n=name),
                "response": attribute.answer.format(n=name, v=value),
            }


def facts(text: str) -> Iterator[tuple[str, str, str]]:
    """(person, attribute, value) of every sentence that states one."""
    for sentence in sentences(text):
        for attribute in ATTRIBUTES:
            match = next(filter(None, (p.fullmatch(sentence) for p in _patterns(attribute))), None)
            if match and match["v"] in attribute.values:
                yield match["n"], attribute.name, match["v"]


def _patterns(attribute: Attribute) -> Iterator[re.Pattern[str]]:
    for statement in attribute.statements:
        pattern = re.escape(statement).replace(r"\{n\}", NAME, 1).replace(r"\{v\}", VALUE, 1)
        yield re.compile(pattern.replace(r"\{n\}", "(?P=n)").replace(r"\{v\}", "(?P=v)"))
