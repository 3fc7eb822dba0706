"""Inspect and set up this machine and a home: doctor, capacity, init."""
