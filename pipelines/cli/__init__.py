"""The command line: parses, calls a stage, prints. Heavy packages are imported inside the commands."""

import os
import sys
from typing import NoReturn

REFUSED = 2  # the exit code of bad input


def main() -> None:
    """Run the command line, once Python imports this project's packages and each process has its GPU."""
    from pipelines.machine.foreign_packages import foreign_package

    # Before anything of `recovery`, which may be the foreign one.
    if problem := foreign_package():
        _refuse(problem)
    from pipelines.cli.commands import main as run
    from recovery.errors import InputError
    from recovery.launch_env import launch_rank, launched_here, local_rank, unset_blank

    unset_blank()
    try:
        here = launched_here()
        launch_rank()
        local_rank()
        if here > 1:
            from recovery.models.device import require_gpus

            # Before any process joins the others: one that failed later would leave them waiting.
            require_gpus()
    except InputError as error:
        _refuse(str(error))
    run()


def _refuse(problem: str) -> NoReturn:
    """End this process; of several on a machine the first one says why."""
    rank = os.environ.get("LOCAL_RANK", "0")
    if rank == "0" or not rank.isdigit():
        print(f"Error: {problem}", file=sys.stderr)
    sys.exit(REFUSED)
