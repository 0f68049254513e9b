"""`pliant probe`: linear probing."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from pliant.cli.app import app
from pliant.cli.options import Data, Device, Json, Model, Seed


@app.command()
def probe(
    model: Model = "bundled",
    data: Data = "digits",
    layer: Annotated[
        Literal["last", "blocks", "all"],
        typer.Option("--layer", help="The last block's output, every block's, or every component's as well."),
    ] = "last",
    pooling: Annotated[
        Literal["mean", "cls"], typer.Option("--pooling", help="Over tokens, or the class token.")
    ] = "mean",
    train: Annotated[int | None, typer.Option("--train", min=1, help="At most so many training images.")] = None,
    validation: Annotated[int | None, typer.Option("--validation", min=1, help="At most so many to choose on.")] = None,
    test: Annotated[int | None, typer.Option("--test", min=1, help="At most so many test images.")] = None,
    cache: Annotated[
        bool, typer.Option("--cache/--no-cache", help="Keep features on disk, and read them from there the next time.")
    ] = True,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the table: .parquet, .csv or .json.")] = None,
    seed: Seed = 0,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Fit a linear classifier on frozen features: the line that tuning has to beat.

    Example: `pliant probe --model facebook/dinov2-small --data folder:photos --layer blocks`
    """
    from pliant.cli.console import ConsoleTalk
    from pliant.cli.output import check_file
    from pliant.job import probe as library_probe

    talk = ConsoleTalk(stderr=json)
    check_file(out, ".parquet", ".csv", ".json")
    limits = {"train": train, "validation": validation, "test": test}
    found = library_probe(
        model, data, layer=layer, pooling=pooling, seed=seed, device=device, cache=cache, talk=talk, **limits
    )
    _show(found, talk, title=f"Linear probe of {model} on {data}", json=json)
    if out is not None:
        talk.say(f"Written to {found.save(out)}")


def _show(found: Any, talk: Any, *, title: str, json: bool) -> None:
    from pliant.cli.console import compact

    frame = found.frame
    if json:
        typer.echo(frame.to_json(orient="records", indent=1))
        return
    how = f"logistic regression on {found.pooling} features"
    note = f"{how}; C chosen on validation, test images read once; interval: Wilson"
    interval = [f"{low:.1%} to {high:.1%}" for low, high in zip(frame["ci_low"], frame["ci_high"], strict=True)]
    table, same = compact(
        frame[["layer", "width", "c", "n", "accuracy"]]
        .rename(columns={"accuracy": "test accuracy"})
        .assign(interval=interval, validation=frame["validation_accuracy"]),
        kept=("layer", "c", "test accuracy", "interval", "validation"),
    )
    talk.table(title, table, note="; ".join(filter(None, [note, same])))
    if found.reused:
        talk.say(f"Features of {found.reused:,} images were read from disk, after a few computed anew had agreed")
    for line in found.notes:
        talk.say(f"Note: {line}")
