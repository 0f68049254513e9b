"""The command line: every command parses, makes one library call, prints."""

from pliant.cli.app import main

__all__ = ["main"]
