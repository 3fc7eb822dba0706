"""Draw figures: pure functions from rows to SVG or HTML (see dashboard/README.md)."""
