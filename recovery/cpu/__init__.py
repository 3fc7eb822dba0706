"""The CPU engine: all that exists only for Llama-like models on a CPU (off: `RECOVER_CPU=off`)."""
