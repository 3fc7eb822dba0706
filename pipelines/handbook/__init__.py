"""This repository's own documentation as documents to learn, with questions about it."""
