"""Turn files into text, one family of formats a module; `pipelines/corpus/documents.py` is the entry point.

tree.py       walk a folder and open its files so that nothing outside it is read
formats.py    the table of suffixes and formats, and the limits
encodings.py  bytes to characters; latin_pages.py code pages of Latin letters
plain.py      txt, md, rst: decoded in this process, streamed
site_markup.py  site_sources/    what of them only a site's tools read
tables.py  html.py  latex.py  pdf.py  manual.py  notebook.py  office.py  opendocument.py  epub.py
              by limited processes: pool.py sends files to worker.py
archive.py    zip archives of XML, which the last three are, safely
similar.py    near-duplicates
superseded_list.py  the list beside a folder of the earlier documents that it supersedes
"""
