"""Run attacks (`python -m tests.attacks [NAME ...]`) and say of each whether it held (exit code 1 if not).

Each runs in a process of its own, so that none can hide what it did to another. With `--ledger FILE` what
came out is kept; `python -m tests.attacks.results` writes it into docs/security.md.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.ledger import Line
from tests.attacks import results
from tests.attacks.attack import Attack, LeftOut, NotHeld, Size
from tests.attacks.table import ATTACKS
from tests.support.environment import keep_apart

ROOT = Path(__file__).parents[2]
LONGEST = 3600.0  # seconds beyond the minutes that were asked for
QUICK = Size(minutes=10, kills=24, quick=True)  # each fuzz takes some ten seconds on two quiet cores
LEFT_OUT = 77  # exit code
HELD, NOT_HELD = "held", "NOT held"


def main() -> None:
    keep_apart()
    options = parser().parse_args()
    size = Size(options.minutes, options.kills, options.seed, think=options.think)
    if options.quick:
        size = replace(QUICK, seed=options.seed)
    unknown = set(options.names) - set(ATTACKS)
    if unknown:
        sys.exit(f"no attack is called {', '.join(sorted(unknown))}: there are {', '.join(ATTACKS)}")
    if options.here:
        sys.exit(here(ATTACKS[options.names[0]], size))
    chosen = [ATTACKS[name] for name in options.names] or [
        attack for attack in ATTACKS.values() if not (options.quick and attack.tests)
    ]
    verdicts = list[str]()
    for attack in chosen:
        line = apart(attack, size)
        verdicts.append(line["verdict"])
        if options.ledger:
            results.ledger(options.ledger).add(line)
    print(f"{verdicts.count(HELD)} of {len(verdicts)} attacks held (seed {size.seed})")
    sys.exit(1 if NOT_HELD in verdicts else 0)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m tests.attacks", description=__doc__)
    made.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(ATTACKS)}; default: all")
    made.add_argument("--minutes", type=float, default=Size.minutes, help="of each fuzz, and of the load")
    made.add_argument("--kills", type=int, default=Size.kills, help="processes that are killed")
    made.add_argument("--seed", type=int, default=Size.seed, help="decides every input")
    made.add_argument(
        "--quick", action="store_true", help="a fixed number of inputs, and no tests that `make test` runs"
    )
    made.add_argument("--think", type=float, default=Size.think, help="mean seconds between a reader's pages")
    made.add_argument("--ledger", type=Path, help="a file that keeps what came out, a JSON line each")
    made.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    return made


def apart(attack: Attack, size: Size) -> Line:
    """Run an attack in a process of its own, print its line, and return what came out."""
    command = [sys.executable, "-m", "tests.attacks", attack.name, "--here"]
    command += [f"--minutes={size.minutes}", f"--kills={size.kills}", f"--seed={size.seed}"]
    command += [f"--think={size.think}", *(["--quick"] if size.quick else [])]
    begun = time.monotonic()
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=LONGEST + 60 * size.minutes
        )
        code, said = done.returncode, done.stdout.strip() or done.stderr.strip()[-600:]
    except subprocess.TimeoutExpired:
        code, said = 1, "did not end"
    verdict = {0: HELD, LEFT_OUT: "left out"}.get(code, NOT_HELD)
    print(f"{verdict:<9} {attack.name:<18} {said}  ({time.monotonic() - begun:.0f} s)", flush=True)
    return results.line(attack, size, verdict, said)


def here(attack: Attack, size: Size) -> int:
    try:
        print(attack.run(size))
    except NotHeld as error:
        print(f"{attack.promise}: {error}")
        return 1
    except LeftOut as error:
        print(error)
        return LEFT_OUT
    return 0


if __name__ == "__main__":
    main()
