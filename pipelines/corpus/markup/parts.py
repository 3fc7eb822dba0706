"""What the patterns of several languages share."""

LEFT_OUT = "[…]"  # stands for a part of a sentence that was left out
SLOT = "\ufffc"  # stands where something is put in that the text does not say
FORMULA = r"(?<![\w$\\])\$(?=[^\s$])[^$\n]{1,1000}(?<=\S)\$(?![\w$])"  # in a line, with its marks
# In a line, with its marks; of Markdown and reStructuredText
CODE_SPAN = r"(?<!`)(?P<bars>`+)(?!`)(?P<code>.{1,1000}?)(?<!`)(?P=bars)(?!`)"
ADDRESS = r"(?:<[^<>\n]*+>|(?:[^()\s]|\((?:[^()\s]|\([^()\s]*+\))*+\))*+)"  # of a link: may hold brackets
TARGET = (  # of a link, behind its text
    rf"(?:\({ADDRESS}(?:\s+(?:\"[^\"]*+\"|'[^']*+'|\([^()]*+\)))?\)"
    r"|\([^()\n<>]{1,500}\.(?:png|jpe?g|gif|svg|webp)\)|\[[^\[\]]*+\])"  # my picture.png
)
LINK_TEXT = r"(?:[^\[\]]|\[[^\[\]]*+\])*+"
LINE_END = r"[ \t]*(?:\n|\Z)(?:[ \t]*\n)?"  # of a line that goes, with an empty one behind it
INDENTED = r"(?:[ \t]*\n|[ \t]+\S.*(?:\n|\Z))*"  # the lines of an indented block


def names(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())
