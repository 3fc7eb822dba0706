"""The schema of recover.yaml, one file a section: each setting is typed, documented and checked here."""
