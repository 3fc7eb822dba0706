"""Written text: augmentation, probes, generated instruction prompts and self-written prompts."""
