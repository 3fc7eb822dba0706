"""Settings as a person may see them: what looks like a secret is replaced before anything else is done."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

HIDDEN = "(hidden)"
NAMES = re.compile(
    r"(^|[_.-])(api_?key|access_?key|private_?key|secret|password|passwd|passphrase|credentials?|authorization"
    r"|bearer|cookie|auth|token)s?($|[_.-])",
    re.IGNORECASE,
)
COUNTS = re.compile(r"(^|_)tokens?_(per|sampled|scored|trained)|_tokens$|^row_tokens$", re.IGNORECASE)
VALUES = re.compile(
    r"\b(hf_[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_-]{8,}|gh[pousr]_[A-Za-z0-9]{8,}|github_pat_\w{8,}|AKIA[A-Z0-9]{12,}"
    r"|xox[abprs]-[A-Za-z0-9-]{8,}|glpat-[\w-]{8,}|AIza[\w-]{20,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*)"
)
IN_URL = re.compile(r"(?<=://)[^/\s@]+@")
IN_QUERY = re.compile(r"(?i)([?&](?:token|key|api_key|password|secret|signature|sig)=)[^&\s]+")


def redact(value: Any, name: str = "") -> Any:
    """The same structure without secrets: by the name of a setting, and by the looks of a value."""
    if isinstance(value, Mapping):
        return {str(key): redact(entry, str(key)) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [redact(entry, name) for entry in value]
    if value and isinstance(value, str) and NAMES.search(name) and not COUNTS.search(name):
        return HIDDEN
    return redact_text(value) if isinstance(value, str) else value


def redact_text(text: str) -> str:
    """A text without what looks like a key, a password in an address, a signature."""
    return IN_QUERY.sub(rf"\1{HIDDEN}", IN_URL.sub(f"{HIDDEN}@", VALUES.sub(HIDDEN, text)))


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Settings one by one: ("distill.optimizer.learning_rate", 0.0003)."""
    if isinstance(value, Mapping) and value:
        for key, entry in value.items():
            yield from flat(entry, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """(setting, before, after) of what differs, secrets hidden; one that is not there is None."""
    old, new = dict(flat(before)), dict(flat(after))
    hidden_old, hidden_new = dict(flat(redact(before))), dict(flat(redact(after)))
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return [(name, hidden_old.get(name), hidden_new.get(name)) for name in sorted(names)]
