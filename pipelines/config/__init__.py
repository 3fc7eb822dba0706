"""Settings (recover.yaml), presets, and the jobs that stages are given."""
