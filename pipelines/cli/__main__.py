"""`python -P -m pipelines.cli`: what `--processes` starts; without -P the current folder would come first."""

from pipelines.cli import main

main()
