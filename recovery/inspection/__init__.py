"""Inspect models and rollouts: supported models, weight parts, saved names, token traces, shifts."""
