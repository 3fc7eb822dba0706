"""Org as Markdown.

page.py        a page, read line by line: headings, paragraphs, lists, what is left out
spans.py       where blocks, drawers and environments end
settings.py    what the keywords of a page set, and what its headings say
written.py     the lines that are written, in their lists and quotations
tables.py      the rows of a table
inline.py      a paragraph: emphasis, code, links, footnotes
reading.py     what of a paragraph is read and written, and which marks are open
shown.py       what links without a text, macros and dates show
entities.py    the names of characters
"""
