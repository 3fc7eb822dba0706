"""Read prompts from files, data sets and rows of many layouts; keep out those that are asked or too long."""
