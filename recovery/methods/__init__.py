"""Methods: the dials of a post-training method, and the table in which every method is a row."""
