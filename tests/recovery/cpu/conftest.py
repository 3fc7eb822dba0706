"""Leave these tests out where the CPU engine is switched off or not installed."""

from __future__ import annotations

import os
from importlib.util import find_spec

if os.environ.get("RECOVER_CPU") == "off" or find_spec("recovery.cpu.engine") is None:
    collect_ignore_glob = ["test_*.py"]
