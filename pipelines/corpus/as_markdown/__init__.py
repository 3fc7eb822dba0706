"""Write other languages as Markdown, for the readers.

asciidoc/  latex/  org/                  the languages
dokuwiki.py  mediawiki.py  wiki_tables.py    of wikis, and a MediaWiki's tables
rst_tables.py                            of reStructuredText, which else stays as it stands, its tables
subtitles.py                             subtitles, as a transcript
heads.py                                 of tables: the rows of titles above them
marked_rows.py                           of tables: rows with cells marked as titles, as wikis and HTML do
table_rows.py                            of csv files: their rows and cells, before they are written
spans.py                                 of tables: cells that go on in the rows below
parts.py                                 what they do alike: write code and tables, hold texts, find marks

What stands for something that the file does not say is left out, or shown as a part left out.
"""
