"""Ask the hub once; where it cannot be reached, read the local cache without retries."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from recovery.errors import InputError

TIMEOUT_SECONDS = 10.0
SILENT_SECONDS = 300.0  # for so long a hub that did not answer is not asked again: each try may last TIMEOUT
OVERLOADED = (408, 429)  # the statuses below 500 that say nothing about what was asked for
UNDELIVERED = {  # each library that the hub is read with has its own classes
    *("ConnectionError", "TimeoutError", "Timeout", "TransportError", "ChunkedEncodingError"),
    *("ClientConnectionError", "ClientPayloadError"),
}


@dataclass
class Reach:
    """Whether the hub answers this process."""

    silent_until: float = -math.inf  # of the monotonic clock


reach = Reach()


@contextmanager
def one_try(name: str) -> Iterator[str | None]:
    """Yield the commit of a data set; where the hub is out of reach, None, with offline mode set inside.

    An answer of the hub itself, such as "no such data set", is raised as it is. A name that the hub cannot
    have is bad input.
    """
    from huggingface_hub.errors import HFValidationError

    try:
        revision = asked_once(name, "dataset")
    except HFValidationError as error:
        raise InputError(f"{name!r} can't be a data set on the hub (owner/name): check the name") from error
    if revision is None:
        with _offline():
            yield None
    else:
        yield revision


def asked_once(name: str, kind: str) -> str | None:
    """Return the commit of a "model" or "dataset"; None where the hub is out of reach.

    An answer of the hub itself, such as "no such model", is raised as it is; a hub that is overloaded or
    broken is out of reach. HFValidationError says that the hub cannot have such a name. A hub that did not
    answer counts as out of reach for a while without another try.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    validate_repo_id(name)
    if time.monotonic() < reach.silent_until:
        return None
    try:
        found = HfApi().repo_info(name, repo_type=kind, timeout=TIMEOUT_SECONDS)
    except HfHubHTTPError as error:
        if not _overloaded(error.response.status_code):
            raise
        return None
    except Exception:  # noqa: BLE001 - each way of being out of reach is another class
        reach.silent_until = time.monotonic() + SILENT_SECONDS
        return None
    return found.sha


def undelivered(error: BaseException) -> bool:
    """Return whether an error, or its cause, is that of a connection: not what the hub says of a data set."""
    from huggingface_hub.errors import HfHubHTTPError

    if isinstance(error, HfHubHTTPError):
        return _overloaded(error.response.status_code)
    names = {one.__name__ for one in type(error).__mro__}
    cause = error.__cause__
    return bool(names & UNDELIVERED) or (cause is not None and undelivered(cause))


def _overloaded(status: int) -> bool:
    return status >= 500 or status in OVERLOADED


@contextmanager
def _offline() -> Iterator[None]:
    import datasets
    import huggingface_hub.constants

    modules: tuple[Any, ...] = (datasets.config, huggingface_hub.constants)
    before = [module.HF_HUB_OFFLINE for module in modules]
    for module in modules:
        module.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        for module, value in zip(modules, before, strict=True):
            module.HF_HUB_OFFLINE = value
