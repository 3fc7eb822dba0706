"""Inspect models and rollouts: supported models, weight parts, token traces, distribution shift."""
