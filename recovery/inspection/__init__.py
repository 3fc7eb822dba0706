"""Inspect models and rollouts: token traces, distribution shift, and whether a model is supported."""
