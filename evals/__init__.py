"""What a checkpoint can do, and what may be claimed from it: suites, statistics, the verdict."""
