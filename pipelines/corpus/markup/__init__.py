"""Take markup off a text as the readers give it: Markdown, MyST, reStructuredText, AsciiDoc, Org, Vim's help.

blocks.py      of a whole text: leave out blocks that are no prose, and write references as they read
lines.py       of a line: tell prose from headings and code, and take links, emphasis and tags off
fences.py      of code between fences
extensions.py  of Markdown: leave out icons, attributes, links to a heading itself
mdx.py         of MDX: leave out expressions and exports
boxes.py       of Markdown: the lines that open and close a box
pictures.py    of a line: tell pictures beside a sentence from those that stand for a word
clauses.py     of the clauses of a law or a contract, by their marks
tables.py      of tables whose columns have titles: what each row has in a column
parts.py       what the patterns share
permalinks.py  of HTML: how links look that lead to the place where they stand
page_blocks.py of HTML: menus, and code in fences, by the blocks of a page
page_rows.py   of HTML: the rows of tables, on a line each
office_files/  of files of word processors
front_matter.py    the data above a site's page
raised.py      of exponents and indices: figures as Unicode has them
mathml.py      of HTML: formulas, on their line
asciidoc.py  org.py  vim_help.py    what only these languages mark, where a text is read as it stands

In doubt a text is kept, as a fact that is not asked is worse than a mark that stays.
"""
