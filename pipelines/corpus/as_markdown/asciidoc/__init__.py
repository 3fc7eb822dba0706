"""AsciiDoc as Markdown.

page.py         a page, block by block
lines.py        what a line begins: headings, items, definitions
style.py        what lines in brackets say of the next block
conditions.py   attributes, and what depends on them
inline.py       references, emphasis and code within a line
tables.py       tables
"""
