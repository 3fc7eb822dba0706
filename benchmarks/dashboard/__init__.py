"""The dashboard and tracker under years of history, in a real browser."""
