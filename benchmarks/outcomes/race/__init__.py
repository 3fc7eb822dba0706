"""Compare all recovery methods on the same microworlds with the same budgets."""
