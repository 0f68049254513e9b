"""The command `pliant`: its subcommands, exit codes, and how errors are shown.

Nothing here imports torch or transformers: `pliant --help` answers at once. A command's module imports what it needs
when it runs.
"""

import shlex
import sys
from collections.abc import Sequence

import typer

from pliant.errors import PliantError

DONE, FAILED, INTERRUPTED = 0, 1, 130

app = typer.Typer(
    name="pliant",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Find out which components of a pretrained transformer bend, and train only those worth it.",
)


@app.callback(invoke_without_command=True)
def _version(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"pliant {installed('pliant')}")
        raise typer.Exit


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 failed with one message, 2 wrong usage, 130 interrupted."""
    sys.exit(run(sys.argv[1:] if arguments is None else list(arguments)))


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    import pliant.cli.commands  # noqa: F401  registers the commands

    try:
        code = app(args=list(arguments), standalone_mode=False)
    except typer.TyperException as error:
        show = getattr(error, "show", None)  # usage errors show how the command is used
        show() if callable(show) else typer.echo(f"Error: {error}", err=True)
        return error.exit_code
    except (typer.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except PliantError as error:
        typer.echo(f"Error: {error}", err=True)
        return FAILED
    if code == INTERRUPTED:
        again = shlex.join(["pliant", *arguments])
        typer.echo(f"\nInterrupted. What is finished is kept; to go on: {again}", err=True)
    return code if isinstance(code, int) else DONE
