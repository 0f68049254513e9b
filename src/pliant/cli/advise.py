"""`pliant advise`: the first half of `pliant tune`."""

from pathlib import Path
from typing import Annotated

import typer

from pliant.cli.app import app
from pliant.cli.options import Data, Device, Json, Model, Seed


@app.command()
def advise(
    model: Model = "bundled",
    data: Data = "digits",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder for the runs of the race.")] = None,
    budget: Annotated[
        str | None, typer.Option("--budget", help="Train at most so many parameters: 10% of all, or 2M, 500k.")
    ] = None,
    source: Annotated[str | None, typer.Option("--source", help="Data like that of pretraining.")] = None,
    train: Annotated[int | None, typer.Option("--train", min=1, help="At most so many training images.")] = None,
    validation: Annotated[int | None, typer.Option("--validation", min=1, help="At most so many to choose on.")] = None,
    test: Annotated[int | None, typer.Option("--test", min=1, help="At most so many, for the linear probe.")] = None,
    image_size: Annotated[int | None, typer.Option("--image-size", min=1, help="Side in pixels.")] = None,
    race_steps: Annotated[int, typer.Option("--race-steps", min=1, help="Steps of each run of the race.")] = 60,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Images a forward pass.")] = 64,
    seed: Seed = 0,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Find out which components are worth training on your images; `pliant tune` goes on from there.

    Example: `pliant advise --model facebook/dinov2-small --data folder:photos --budget 20%`
    """
    from pliant.cli.console import ConsoleTalk
    from pliant.job import advise as library_advise

    options = {name: value for name, value in locals().items() if name not in _NOT_OPTIONS and value is not None}
    result = library_advise(model, data, out=out, device=device, talk=ConsoleTalk(stderr=json), **options)
    if json:
        typer.echo(result.to_json(), nl=False)


_NOT_OPTIONS = {"model", "data", "out", "device", "json", "ConsoleTalk", "library_advise"}
