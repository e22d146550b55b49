"""`python -m agent` is the `assay` command."""

from agent.cli import main

main()
