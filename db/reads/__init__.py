"""Read the tracker's database, for the dashboard, the command line and the stages.

queries.py    runs, checkpoints, scores, items    cycles.py  a cycle as one document
stages.py     a cycle's three models side by side    flips.py  items that changed between pass and fail
curves.py     metrics over steps    traces.py  token traces    overview.py  across runs and cycles
changes.py    change detection    readonly.py  a user's SQL, read-only
"""
