"""How a stage runs: workspace, recording, progress, cost, several processes."""
