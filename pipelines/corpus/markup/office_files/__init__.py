"""Take the markup of word processors' files apart.

office_rows.py          of Word and PowerPoint: the rows of tables, on a line each
opendocument_styles.py  of OpenDocument: where text stands, raised, lowered or nowhere
"""
