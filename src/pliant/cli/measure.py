"""`pliant measure`: plasticity."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from pliant.cli.app import app
from pliant.cli.options import Device, Json, Model, Seed
from pliant.terms import Convention, PairMode


@app.command()
def measure(
    model: Model = "bundled",
    source: Annotated[str | None, typer.Option("--source", help="Data like that of pretraining (x).")] = None,
    target: Annotated[str, typer.Option("--target", "-d", "--data", help="The downstream data (y).")] = "digits",
    convention: Annotated[Convention, typer.Option("--convention", help="insitu, or shared (the paper's).")] = "insitu",
    pairs: Annotated[
        PairMode, typer.Option("--pairs", help="all (x_i, y_j) of a pass, or matched (x_i, y_i).")
    ] = "all",
    items: Annotated[int, typer.Option("--items", min=2, help="At most so many images a side, drawn by seed.")] = 128,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Images a side and pass.")] = 32,
    blocks: Annotated[bool, typer.Option("--blocks", help="Print every block, not only the mean over blocks.")] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the table: .parquet, .csv or .json.")] = None,
    seed: Seed = 0,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Measure plasticity: how much each component changes when its input changes.

    Example: `pliant measure --model facebook/dinov2-small --source fashion-mnist --data folder:photos`
    """
    from pliant.cli.console import ConsoleTalk
    from pliant.measuring import measure as library_measure
    from pliant.measuring.subject import pick_device
    from pliant.reporting import report as write_report

    talk = ConsoleTalk(stderr=json)
    with talk.bar("Measuring") as bar:
        found = library_measure(
            model, source, target, convention=convention, pairs=pairs, items=items, batch_size=batch_size, seed=seed,
            device=pick_device(device), progress=bar,
        )  # fmt: skip
    if out is not None:
        talk.say(f"Written to {found.save(out)}, {write_report(out)}")
    if json:
        typer.echo(found.to_json())
        return
    columns = ["plasticity", "stderr", "ci_low", "ci_high"]
    if blocks:
        talk.table("Plasticity by component", found.frame[["component", *columns, "max", "relative", "token_norm"]])
    talk.table(
        "Plasticity by role",
        found.by_role[["role", *columns, "spread", "blocks", "n_pairs"]],
        note=_about(found.provenance),
    )


def _about(provenance: Mapping[str, Any]) -> str:
    """Say how the numbers were obtained."""
    sides = " against ".join(str(provenance[side]) for side in ("source", "target") if side in provenance)
    return (
        f"convention {provenance['convention']}, {provenance['pairs']} pairs, {sides}; mean over blocks with its 95 % "
        f"interval over items; spread: standard deviation over blocks; seed {provenance['seed']}"
    )
