"""Draw figures: pure functions from rows to SVG or HTML, without database or request (see
dashboard/README.md).
"""
