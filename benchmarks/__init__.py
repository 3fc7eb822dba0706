"""Benchmark `recover` against other libraries on the same work, one question per file (`make bench`)."""
