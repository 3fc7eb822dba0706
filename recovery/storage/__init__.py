"""Storage: atomic directories, weight hashes, checkpoints."""
