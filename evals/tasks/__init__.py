"""Tasks of lm-eval as suites: their names without importing lm-eval, the runs, the scores, and what the
checkers of its IFEval take."""
