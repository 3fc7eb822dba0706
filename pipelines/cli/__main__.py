"""`python -m pipelines.cli`: what torchrun starts."""

from pipelines.cli.main import main

main()
