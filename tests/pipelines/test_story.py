"""The whole story through the command line: learn, forget, recover; and the same when killed on the way."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pipelines.config import settings

pytestmark = pytest.mark.slow
REJECTED = 3  # the exit code of a cycle that was told no: a demo of five steps proves nothing


def recover(home: Path, *words: str) -> list[str]:
    return [sys.executable, "-c", "from pipelines.cli import main; main()", "--home", str(home), *words]


def run(home: Path, *words: str) -> Any:
    done = subprocess.run(recover(home, "--json", "-q", *words), capture_output=True, text=True, timeout=1500)
    assert done.returncode in (0, REJECTED), done.stderr[-2000:]
    return json.loads(done.stdout)


def small(home: Path) -> Path:
    """A home whose demo trains for a few steps only: the story's shape, not its result."""
    home.mkdir()
    text = settings.preset_text("microworld")
    text = re.sub(r"\n  (steps|epochs): \d+", "\n  steps: 5", text)
    text = re.sub(r"save_every: \d+", "save_every: 2", text)
    (home / settings.CONFIG_NAME).write_text(text, encoding="utf-8")
    return home


def recorded(home: Path) -> dict[str, Any]:
    """All that must not depend on whether a run was interrupted."""
    counts = {
        table: run(home, "query", f"SELECT count(*) AS n FROM {table}")[0]["n"]
        for table in ("cycles", "checkpoints", "scores", "items", "verdicts", "metrics", "documents")
    }
    runs = run(home, "query", "SELECT key, count(*) AS n FROM runs WHERE parent_id IS NOT NULL GROUP BY key")
    cycle = run(home, "show", "cycle:1")
    losses = run(
        home,
        "query",
        "SELECT name, step, value FROM metrics WHERE name IN ('loss', 'grad_norm') "
        "ORDER BY run_id LIKE 'distill%', name, step",
    )
    return {
        "counts": counts,
        "runs": runs,
        "losses": losses,
        **{name: cycle[name] for name in ("status", "checkpoints", "scores", "verdict")},
    }


def finished(home: Path) -> bool:
    runs = run(home, "ls", "runs") if (home / "recover.db").exists() else []
    return any(row["kind"] == "demo" and row["status"] == "done" for row in runs)


def test_a_demo_killed_at_random_moments_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    whole, killed = small(tmp_path / "whole"), small(tmp_path / "killed")
    run(whole, "demo", "--cycles", "1", "--seed", "5")
    seed = int.from_bytes(os.urandom(4), "big")
    print(f"kills drawn with seed {seed}")
    rng, command, code = random.Random(seed), ["demo", "--cycles", "1", "--seed", "5"], None
    for _ in range(6):
        process = subprocess.Popen(recover(killed, "-q", *command), stdout=subprocess.DEVNULL)
        try:
            code = process.wait(timeout=rng.uniform(4, 25))
            break
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
        if (killed / "recover.db").exists() and run(killed, "ls", "runs"):
            command = ["resume"]
        time.sleep(0.1)
    if code is None and not finished(killed):  # a kill may come between the demo's end and its process's
        run(killed, *command)
    assert recorded(killed) == recorded(whole)


def test_the_story_on_a_world_nobody_chose(tmp_path: Path) -> None:
    seed = int.from_bytes(os.urandom(3), "big")
    (cycle,) = run(tmp_path / "home", "demo", "--cycles", "1", "--seed", str(seed))["cycles"]
    scores = {
        name: {stage: suite[stage] for stage in ("clean", "midtrained", "recovered")}
        for name, suite in cycle["scores"].items()
    }
    print(f"seed {seed}: {cycle['status']}: {json.dumps(scores)}")
    ifeval, knowledge, retention = (scores[name] for name in ("ifeval", "knowledge", "retention"))
    assert ifeval["clean"] >= 0.95 and ifeval["midtrained"] <= 0.5, "midtraining breaks behaviour"
    assert ifeval["recovered"] >= ifeval["clean"] - 0.05, "distillation brings it back"
    assert knowledge["clean"] <= 0.15 and knowledge["recovered"] >= 0.65, "the documents are known"
    assert retention["recovered"] >= 0.85 * retention["clean"], "and so is what was known before"
