"""Evaluate a checkpoint: the suites and their questions, its answers, and reuse of recorded scores."""
