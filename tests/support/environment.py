"""What the user has exported: a home, a database and a proxy are theirs; no test or attack may use them."""

from __future__ import annotations

import os

KEPT = ("RECOVER_CPU", "RECOVER_SANITIZE", "RECOVER_TEST_POSTGRES")  # they say what is tested
LOOPBACK = "127.0.0.1,localhost"


def keep_apart() -> None:
    """Take the user's settings of recover out of the environment, and ask no proxy for servers of tests."""
    for name in [name for name in os.environ if name.startswith("RECOVER_") and name not in KEPT]:
        del os.environ[name]
    os.environ.update(NO_PROXY=LOOPBACK, no_proxy=LOOPBACK)
