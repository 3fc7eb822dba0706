"""Train a model: the loop, optimizer updates, step data, alarms and preflight checks."""
