"""`pliant tune`: the main job."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from pliant.cli.app import app
from pliant.cli.options import Data, Device, Json, Model, Seed


@app.command()
def tune(
    model: Model = "bundled",
    data: Data = "digits",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder to write; named after the run if left out.")
    ] = None,
    components: Annotated[
        str, typer.Option("--components", "-c", help="auto (race), or roles joined by +: mha, fc1+fc2, full, head.")
    ] = "auto",
    budget: Annotated[
        str | None, typer.Option("--budget", help="Train at most so many parameters: 10% of all, or 2M, 500k.")
    ] = None,
    source: Annotated[
        str | None, typer.Option("--source", help="Data like that of pretraining, to measure with.")
    ] = None,
    train: Annotated[int | None, typer.Option("--train", min=1, help="At most so many training images.")] = None,
    validation: Annotated[int | None, typer.Option("--validation", min=1, help="At most so many to choose on.")] = None,
    test: Annotated[int | None, typer.Option("--test", min=1, help="At most so many test images.")] = None,
    image_size: Annotated[
        int | None, typer.Option("--image-size", min=1, help="Side in pixels; else the model's.")
    ] = None,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Optimizer steps of the training.")] = 300,
    race_steps: Annotated[int, typer.Option("--race-steps", min=1, help="Steps of each run of the race.")] = 60,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Images a forward pass.")] = 64,
    accumulation: Annotated[int, typer.Option("--accumulation", min=1, help="Forward passes a step.")] = 1,
    optimizer: Annotated[Literal["sgd", "adamw"], typer.Option("--optimizer", help="The optimiser.")] = "sgd",
    learning_rate: Annotated[
        float | None, typer.Option("--learning-rate", "--lr", help="The highest; left out: the best of a small grid.")
    ] = None,
    weight_decay: Annotated[float, typer.Option("--weight-decay", min=0.0, help="Of matrices, never of norms.")] = 0.0,
    warmup_steps: Annotated[
        int | None, typer.Option("--warmup-steps", min=0, help="Left out: a tenth of the steps.")
    ] = None,
    eval_every: Annotated[int | None, typer.Option("--eval-every", min=1, help="Left out: ten times in all.")] = None,
    precision: Annotated[
        Literal["float32", "bfloat16", "float16"], typer.Option("--precision", help="Of the forward pass.")
    ] = "float32",
    augmentation: Annotated[
        Literal["none", "flip", "crop", "flip-crop"], typer.Option("--augmentation", help="Of training images.")
    ] = "none",
    normalization: Annotated[
        Literal["checkpoint", "imagenet"],
        typer.Option("--normalization", help="Mean and std: the checkpoint's own, or ImageNet's."),
    ] = "checkpoint",
    skip_unreadable: Annotated[
        bool, typer.Option("--skip-unreadable", help="Leave out images that cannot be read.")
    ] = False,
    seed: Seed = 0,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Find out which components are worth training on your images, and train those.

    Example: `pliant tune --model facebook/dinov2-small --data folder:photos --budget 20% --out photos-run`
    """
    from pliant.cli.console import ConsoleTalk
    from pliant.job import tune as library_tune

    options = {name: value for name, value in locals().items() if name not in _NOT_OPTIONS and value is not None}
    talk = ConsoleTalk(stderr=json)
    result = library_tune(model, data, out=out, device=device, talk=talk, **options)
    if json:
        typer.echo(result.to_json(), nl=False)


_NOT_OPTIONS = {"model", "data", "out", "device", "json", "ConsoleTalk", "library_tune"}
