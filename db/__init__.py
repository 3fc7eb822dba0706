"""The tracker: every step of every run is a row here, and the dashboard reads the rows.

tracker.py       writes: runs, checkpoints, scores, cycles, reviews
live.py          writes of a stage while it runs: metrics, progress, heartbeat
queries.py       reads; with cycles.py (a cycle as one document), stages.py (its three models side by side),
                 flips.py, curves.py, overview.py (across runs and cycles), traces.py, changes.py
readonly.py      a user's own SQL, read-only      export.py  whole tables as files, without secrets
schema.py        the tables; migrations/ makes them, numbered and append-only, when a database is opened
session.py       opening a database, read and write transactions; sqlite.py has SQLite's settings
transactions.py  what a write does, repeatable; upsert.py, points.py and values.py help
redact.py        hides secrets, printable.py escape sequences: also for the dashboard and the command line
errors.py        one-line errors

Several homes may share a database: aliases, cycle numbers and runs belong to a project (schema.Project), and
a Database reads and writes those of its project. A checkpoint's places say in which homes it lies.
"""
