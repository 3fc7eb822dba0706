"""Track runs: every step, score and cycle is a row of one database, which the dashboard reads.

reads/           queries
writes/          the tracker, the only code that changes rows
schema.py        the tables; migrations/ creates and updates them when a database is opened
session.py       opening a database, read and write transactions; sqlite.py has SQLite's settings
export.py        tables as files, without secrets
redact.py        redaction of secrets
errors.py        one-line errors
values.py        values as the database stores them: timestamps, safe text, JSON without NaN
cycle_names.py   the stages and axes of a cycle

Several homes may share a database: aliases, cycle numbers and runs belong to a project (schema.Project), and
a Database reads and writes those of its project. A checkpoint's places list the homes that hold it.
"""
