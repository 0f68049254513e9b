"""`python -m pliant.cli`."""

from pliant.cli.app import main

main()
