"""Benchmark the dashboard and the tracker with years of history, in a real browser."""
