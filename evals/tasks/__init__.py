"""Tasks of lm-eval as suites: their names without importing lm-eval, the runs, and the scores."""
