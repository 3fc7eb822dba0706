"""Parsing processes that stay for all tests of a file which asks for them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pipelines.corpus import documents
from tests.support.parsers import KeptPool


@pytest.fixture(scope="module")
def kept_parsers() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(documents, "Pool", KeptPool)
        yield
    KeptPool.end_all()
