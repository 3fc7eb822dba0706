"""Ask for the dashboard's password (HTTP Basic, any name), and limit how often one may be tried."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping, MutableMapping
from typing import Any

from dashboard.access.login_attempts import LoginAttempts

BLANK_LETTERS = "\u115f\u1160\u2800\u3164\uffa0"  # Hangul fillers, the empty Braille cell: printable, unseen
SHORTEST_PASSWORD = 8  # visible characters


class Login:
    """Let in requests with the right password."""

    def __init__(self, password: str) -> None:
        self.password = password
        self.attempts = LoginAttempts()

    def refusal(self, scope: MutableMapping[str, Any], headers: Mapping[str, str]) -> tuple[int, str] | None:
        """Return the status and reason of a refusal, or None for the right password."""
        asking = 401, "a name and the dashboard's password, please"
        if "authorization" not in headers:
            return asking
        address = (scope.get("client") or ("",))[0]
        if not self.attempts.allowed(address):
            return 429, "too many wrong passwords: wait a minute"
        if _is_right(self.password, headers["authorization"]):
            self.attempts.succeeded(address)
            return None
        self.attempts.failed(address)
        return asking


def is_weak(password: str) -> bool:
    """Return whether a password is too short, not counting spaces and invisible characters."""
    seen = [one for one in password if one.isprintable() and not one.isspace() and one not in BLANK_LETTERS]
    return len(seen) < SHORTEST_PASSWORD


def is_utf8(password: str) -> bool:
    """Return whether a browser can send a password; other bytes of the environment are lone surrogates."""
    return not any("\ud800" <= one <= "\udfff" for one in password)


def _is_right(password: str, credentials: str) -> bool:
    """Compare HTTP Basic credentials with the password; the name may be any."""
    scheme, _, encoded = credentials.partition(" ")
    if scheme.lower() != "basic":
        return False
    try:
        _, _, given = base64.b64decode(encoded, validate=True).partition(b":")
    except ValueError:  # includes invalid base64
        return False
    return secrets.compare_digest(given, password.encode())
