"""The command line: parses, calls a stage, prints. Heavy packages are imported inside the commands."""

import sys


def main() -> None:
    """Run the command line, once it is sure that Python imports this project's packages."""
    from pipelines.machine.packages import require_ours
    from recovery.errors import InputError

    try:
        require_ours()
    except InputError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    from pipelines.cli.main import main as run

    run()
