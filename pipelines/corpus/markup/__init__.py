"""Take markup off a text as the readers give it: Markdown, MyST, reStructuredText, AsciiDoc, Org, Vim's help.

blocks.py    leave out blocks that are no prose, and put names for references: a whole text
lines.py     tell prose from headings and code, and take links, emphasis and tags off: a line, a sentence
asciidoc.py  org.py  vim_help.py    what only these languages mark

In doubt a text is kept, as a fact that is not asked is worse than a mark that stays.
"""
