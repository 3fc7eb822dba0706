"""The kinds of runs; the id of a run begins with its kind. One that is not listed, as of a benchmark, works
itself, and alone."""

SHARED = ("midtrain", "distill")  # on which all processes work; on others the first alone
COMPOSED = ("demo", "cycle", "choose", "sweep", "locate", "retrieval", "pilot")  # only of the runs below them
KINDS = ("init", *SHARED, "eval", "merge", "drift", *COMPOSED)
