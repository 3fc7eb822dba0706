"""Sampling: the protocol, the in-process sampler, mixtures, and the writers of prefixes."""
