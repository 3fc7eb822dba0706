"""Text that a model writes from documents: augmentation and probes."""
