"""Compute the loss of every method: divergences, importance weights, and statistics of the token signal."""
