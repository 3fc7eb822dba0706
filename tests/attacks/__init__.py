"""Attacks on every door of the program: `make attack` says of each whether it held (docs/security.md)."""
