"""Rows -> SVG or HTML, pure: no database, no request. What a figure is: dashboard/README.md."""
