"""`pliant landscape`: loss and rate of change around a checkpoint."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from pliant.cli.app import app
from pliant.cli.options import Data, Device, Json, Model, Seed


@app.command()
def landscape(
    model: Model = "bundled",
    data: Data = "digits",
    components: Annotated[
        list[str] | None,
        typer.Option("--components", "-c", help="Sets like mha or fc1+fc2, or block03.mha. Left out: ln1, fc1, mha."),
    ] = None,
    directions: Annotated[
        Literal["pca", "random"], typer.Option("--directions", help="Of weights: pca of a path of descent, or random.")
    ] = "pca",
    points: Annotated[int, typer.Option("--points", min=3, help="Of a side of each grid.")] = 21,
    images: Annotated[int, typer.Option("--images", min=2, help="At most so many training images.")] = 100,
    steps: Annotated[int, typer.Option("--steps", min=2, help="Of gradient descent.")] = 30,
    learning_rate: Annotated[
        float | None,
        typer.Option("--learning-rate", "--lr", help="Of descent. Left out: the largest at which no loss rises."),
    ] = None,
    block: Annotated[
        int | None, typer.Option("--block", min=0, help="Of rates of change. Left out: the middle.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write.")] = Path("pliant-landscape"),
    surfaces: Annotated[
        bool, typer.Option("--surfaces", help="Also three-dimensional, as PNG and GIF (needs matplotlib).")
    ] = False,
    seed: Seed = 0,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Map the loss over two directions of a component's weights, and its rate of change over two of its input.

    Example: `pliant landscape --model facebook/dinov2-small --data folder:photos -c mha -c ln1 --surfaces`
    """
    from pliant.cli.console import ConsoleTalk
    from pliant.cli.output import check_folder
    from pliant.landscapes import landscape as library_landscape
    from pliant.reporting.maps import write_maps

    talk = ConsoleTalk(stderr=json)
    check_folder(out)
    with talk.bar("Computing landscapes") as bar:
        found = library_landscape(
            model, data, components=components or ("ln1", "fc1", "mha"), directions=directions, points=points,
            images=images, steps=steps, learning_rate=learning_rate, block=block, seed=seed, device=device,
            progress=bar,
        )  # fmt: skip
    kept = found.save(out / f"landscape-{directions}.json")
    with talk.bar("Drawing") as bar:
        written = write_maps(kept, surfaces=surfaces, progress=bar)
    if json:
        typer.echo(found.to_json())
        return
    talk.say(f"Written: {kept}, {', '.join(p.name for p in written)}")
