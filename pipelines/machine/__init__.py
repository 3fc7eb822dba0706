"""Inspect this machine, fit settings to it, estimate stages, set up a home."""
