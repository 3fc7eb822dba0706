"""Name the stages and the axes of a cycle, in the order in which they are shown; imports no SQLAlchemy."""

STAGES = ("clean", "midtrained", "recovered")
AXES = ("behaviour", "knowledge", "retention", "updates")
