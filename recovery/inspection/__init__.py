"""Inspection: token traces, and the distribution shift between two models."""
