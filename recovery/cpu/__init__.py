"""The small-model CPU engine: all that exists only for fp32 models on a CPU (off: `RECOVER_CPU=off`)."""
