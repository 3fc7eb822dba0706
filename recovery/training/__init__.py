"""Train a model: the loop, optimizer updates, step data, alarms, plateaus and preflight checks."""
