"""Sampling: the protocol, the in-process sampler and its budget, mixtures, and writers of prefixes."""
