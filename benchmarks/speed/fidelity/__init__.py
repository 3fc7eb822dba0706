"""Compare readers of documents with libraries: on known text, near-duplicates and hostile files."""
