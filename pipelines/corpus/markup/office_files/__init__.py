"""Take the markup of word processors' files apart.

office_rows.py          of Word and PowerPoint: the rows of tables, on a line each
office_formulas.py      of Word and PowerPoint: the brackets of formulas, and which of these a line can show
symbol_font.py          of Word: characters of the font Symbol
xml_names.py            elements and attributes by their names
opendocument_styles.py  of OpenDocument: where text stands, raised, lowered or nowhere
"""
