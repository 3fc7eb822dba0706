"""Measure this project's speed beside other libraries, on the same work within one run."""
