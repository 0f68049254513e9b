"""`pliant runs`: the cells of a store."""

from pathlib import Path
from typing import Annotated

import typer

from pliant.cli.app import app
from pliant.cli.options import Json


@app.command()
def runs(
    out: Annotated[Path, typer.Argument(help="Folder of a sweep, or of `pliant tune`.")],
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Make failed cells missing, so that the next sweep runs them.")
    ] = False,
    json: Json = False,
) -> None:
    """List cells: done, failed, missing, running here.

    Example: `pliant runs digits-sweep`
    """
    import json as json_module

    from pliant.cli.sweep_talk import print_store
    from pliant.sweeping.listing import list_store, retry_store

    if retry_failed:
        typer.echo(f"Cells that the next sweep runs again: {len(retry_store(out))}", err=True)
    found = list_store(out)
    if json:
        typer.echo(json_module.dumps(found.to_json(), indent=1))
        return
    print_store(found.frame, found.problems, folder=str(out))
