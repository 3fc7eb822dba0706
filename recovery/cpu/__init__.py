"""The small-model CPU engine: everything that exists only for fp32 models on a CPU."""
