"""LaTeX as Markdown.

document.py    a paper, a book, or the part of one that a file holds
tokens.py      a source cut into tokens, and where a brace, formula or environment ends
macros.py  glossary.py  braces.py    what names stand for: macros and abbreviations
page.py        tokens read one by one, with their arguments, and what is written of them
commands.py    what commands print, by the tables of words.py
blocks.py      environments: lists, tables, code, theorems
formulas.py    references.py    formulas as text; references without their numbers
"""
