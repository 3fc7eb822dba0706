"""Forward passes: hidden states, padding-free batches, the KV cache."""
