"""Leave out what of Markdown and reStructuredText only the tools that build a site read.

markdown.py         Markdown as its readers see it
markdown_parts.py   a text in parts: code, tags, comments, prose
markdown_tables.py  tables in HTML, by their rows
quarto.py           Quarto and R Markdown: values that a build fills in, labels of formulas
restructured.py     reStructuredText: comments, labels, options of directives
substitutions.py    and what its substitutions stand for
"""
