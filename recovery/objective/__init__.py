"""The objective: divergences, the one estimator, and measures of its token signal."""
