"""Measure what each method gains and costs on the microworld, seed by seed."""
