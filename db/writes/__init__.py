"""Write to the tracker's database: the only code that changes rows.

tracker.py       runs, checkpoints, scores, cycles, reviews
live.py          of a running stage: metrics, progress, heartbeat; points.py packs metric points
transactions.py  repeatable writes    upsert.py  insert or update
"""
