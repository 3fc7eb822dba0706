"""The attacks, by name."""

from __future__ import annotations

from tests.attacks.attack import Attack
from tests.attacks.from_tests import by_tests
from tests.attacks.fuzz_documents import fuzz_documents
from tests.attacks.kills import full_disks, kills

LISTED = (
    Attack("kills", "a killed process loses nothing that was acknowledged", kills),
    Attack("full-disks", "a disk that fills loses nothing and is named in one line", full_disks),
    Attack("fuzz-documents", "any file is read, or skipped or refused with a reason", fuzz_documents),
)
ATTACKS = {attack.name: attack for attack in LISTED}
