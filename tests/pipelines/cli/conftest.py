"""The `recover` fixture for every test of a command."""

from tests.support.commands import recover

__all__ = ["recover"]
