"""Reads: what the dashboard, the command line and the stages ask of the tracker's database.

queries.py    runs, checkpoints, scores, items    cycles.py  a cycle as one document
stages.py     a cycle's three models side by side    flips.py  pass to fail and back, over cycles
curves.py     metrics over steps    traces.py  token traces    overview.py  across runs and cycles
changes.py    what changed since a moment    readonly.py  a user's own SQL, read-only
"""
