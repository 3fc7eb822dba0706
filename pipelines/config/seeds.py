"""What a seed may be: what random generators take and databases hold."""

MOST_SEED = 2**32 - 1
