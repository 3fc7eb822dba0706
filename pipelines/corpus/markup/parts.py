"""What the patterns of several languages share."""

SLOT = "\ufffc"  # stands where something is put in that the text does not say
INDENTED = r"(?:[ \t]*\n|[ \t]+\S.*(?:\n|\Z))*"  # the lines of an indented block
