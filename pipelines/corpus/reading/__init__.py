"""Files into text, one family of formats a module; `pipelines/corpus/documents.py` is the door.

tree.py       a folder's files, opened so that nothing outside it is ever read
formats.py    the table: which suffix is read by what
encodings.py  bytes to characters
plain.py      txt, md, rst    records.py  jsonl, csv, tsv    (in this process, streamed)
html.py  pdf.py  office.py    read by limited processes: pool.py sends files to worker.py
similar.py    near-duplicates
"""
