"""Read the tracker's database, for the dashboard, the command line and the stages.

queries.py      runs, scores, items, reviews, documents    checkpoints.py  checkpoints, aliases, ancestors
cycles.py       a cycle as one document    cycle_range.py  a range of cycles and their runs
stages.py       a cycle's three models side by side    flips.py  items that changed between pass and fail
curves.py       metrics over steps    traces.py  token traces    overview.py  across runs and cycles
earlier_documents.py  what is still known of earlier documents
changes.py      change detection    readonly.py  a user's SQL, read-only    rows.py  rows as dicts
"""
