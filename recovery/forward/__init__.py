"""Forward passes: hidden states, padding-free batches, decoding with a KV cache, and the fast path."""
