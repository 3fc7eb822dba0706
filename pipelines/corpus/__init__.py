"""Documents: from files to text, from text to tokens."""
