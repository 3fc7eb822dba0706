"""Read prompts from files, data sets and rows of many layouts; leave out leaked and too long ones."""
