"""Read files that are zip archives of XML.

archive.py     open and parse them safely
office.py      Word and PowerPoint; office_rows.py their tables' rows, on a line each
opendocument.py  OpenDocument; opendocument_styles.py where its text stands: raised, lowered or nowhere
epub.py        e-books, each page by html.py
"""
