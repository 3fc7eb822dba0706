"""Name a cycle's stages, axes and broken-off states, in the order shown; imports no SQLAlchemy."""

STAGES = ("clean", "midtrained", "recovered")
AXES = ("behaviour", "knowledge", "retention", "updates")
BROKEN_OFF = ("failed", "stopped")  # states of a run that did not come to its end
GIVEN_UP = "given up"  # how the reason begins of a run that is never resumed
