"""The command line: parses, calls a stage, prints. Heavy packages are imported inside the commands."""

import sys

REFUSED = 2  # the exit code of bad input


def main() -> None:
    """Run the command line, once it is sure that Python imports this project's packages."""
    from pipelines.machine.foreign_packages import foreign_package

    if problem := foreign_package():
        print(f"Error: {problem}", file=sys.stderr)
        sys.exit(REFUSED)
    from pipelines.cli.commands import main as run

    run()
