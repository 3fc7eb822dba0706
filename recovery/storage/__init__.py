"""Storage: atomic directories, weight hashes, checkpoints, training states."""
