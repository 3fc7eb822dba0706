"""Evaluate checkpoints: suites, statistics, the verdict."""
