"""The tracker: every step of every run is a row here, and the dashboard reads the rows.

reads/           queries; writes/ the tracker, the only code that changes rows
schema.py        the tables; migrations/ makes them, numbered and append-only, when a database is opened
session.py       opening a database, read and write transactions; sqlite.py has SQLite's settings
export.py        whole tables as files, without secrets
redact.py        hides secrets, printable.py escape sequences: also for the dashboard and the command line
errors.py        one-line errors

Several homes may share a database: aliases, cycle numbers and runs belong to a project (schema.Project), and
a Database reads and writes those of its project. A checkpoint's places say in which homes it lies.
"""
