"""The tests leave alone what the user has exported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHOWN = "import json, os, tests.conftest; print(json.dumps(dict(os.environ)))"
EXPORTED = {"RECOVER_HOME": "/nowhere", "RECOVER_DB_URL": "sqlite:////nowhere/recover.db"}
TESTED = {"RECOVER_CPU": "off", "RECOVER_SANITIZE": "all", "RECOVER_TEST_POSTGRES": "postgresql:///tests"}


def test_no_test_sees_the_user_s_home_or_database_or_asks_a_proxy_for_its_servers() -> None:
    environment = {**os.environ, **EXPORTED, **TESTED, "no_proxy": "", "NO_PROXY": "example.org"}
    command = [sys.executable, "-c", SHOWN]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    seen = json.loads(done.stdout)
    assert {name: value for name, value in seen.items() if name.startswith("RECOVER_")} == TESTED
    assert seen["NO_PROXY"] == seen["no_proxy"] == "127.0.0.1,localhost"
