"""The tracker: every step of every run is a row here, and the dashboard reads the rows.

tracker.py       writes: runs, checkpoints, scores, cycles, reviews
live.py          writes of a stage while it runs: metrics, progress, heartbeat
queries.py       reads; with cycles.py (a cycle as one document), curves.py, readonly.py (a user's own SQL)
schema.py        the tables; migrations/ makes them, numbered and append-only, when a database is opened
session.py       opening a database, read and write transactions; sqlite.py has SQLite's settings
transactions.py  what a write does, repeatable; upsert.py, points.py and values.py help
errors.py        one-line errors
"""
