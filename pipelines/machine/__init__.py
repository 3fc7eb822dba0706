"""This machine and this home: doctor, capacity, init."""
