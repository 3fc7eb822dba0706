"""The command line: parses, calls a stage, prints. Heavy packages are imported inside the commands."""

from pipelines.cli.main import main

__all__ = ["main"]
