"""`pliant bounds`: how far each component can bend."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from pliant.cli.app import app
from pliant.cli.options import Device, Json, Model, Seed
from pliant.terms import Convention, PairMode


@app.command()
def bounds(
    model: Model = "bundled",
    source: Annotated[str | None, typer.Option("--source", help="Data like that of pretraining (x).")] = None,
    target: Annotated[str, typer.Option("--target", "-d", "--data", help="The downstream data (y).")] = "digits",
    convention: Annotated[Convention, typer.Option("--convention", help="insitu, or shared (the paper's).")] = "insitu",
    pairs: Annotated[
        PairMode, typer.Option("--pairs", help="all (x_i, y_j) of a pass, or matched (x_i, y_i).")
    ] = "all",
    items: Annotated[int, typer.Option("--items", min=2, help="At most so many images a side, drawn by seed.")] = 128,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Images a side and pass.")] = 32,
    blocks: Annotated[bool, typer.Option("--blocks", help="Print every block, not only one row per role.")] = False,
    local: Annotated[
        int, typer.Option("--local", min=0, help="At so many images, also find the local constant of attention.")
    ] = 0,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the report: .json or .csv.")] = None,
    seed: Seed = 0,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Bound how much each component can change, beside how much it was measured to change.

    Example: `pliant bounds --model facebook/dinov2-small --source fashion-mnist --data folder:photos --blocks`
    """
    from pliant.cli.console import ConsoleTalk
    from pliant.cli.output import check_file
    from pliant.measuring.bounds import bounds as library_bounds
    from pliant.measuring.subject import pick_device

    talk = ConsoleTalk(stderr=json)
    check_file(out, ".json", ".csv")
    with talk.bar("Measuring and bounding") as bar:
        found = library_bounds(
            model, source, target, convention=convention, pairs=pairs, items=items, batch_size=batch_size, seed=seed,
            local=local, device=pick_device(device), progress=bar,
        )  # fmt: skip
    _show(found, talk, blocks=blocks, json=json)
    if out is not None:
        talk.say(f"Written to {found.save(out)}")


def _show(found: Any, talk: Any, *, blocks: bool, json: bool) -> None:
    from pliant.cli.console import compact

    if json:
        typer.echo(found.to_json())
        return
    if blocks:
        shown = ["component", "bound", "kind", "max", "mean", "slack", "holds_on", "radius", "s_min", "tokens"]
        table, same = compact(found.frame[shown])
        talk.table("Bounds by component", table, note="; ".join(filter(None, [_reasons(found.frame), same])))
        talk.table("The published bound of attention", found.paper[["component", "bound", "max", "slack", "reason"]])
    table, same = compact(found.by_role.rename(columns={"rank_bound": "bound #", "rank_mean": "mean #"}))
    talk.table("Bounds by role", table, note="; ".join(filter(None, [_about(found.provenance), same])))
    if found.local is not None:
        talk.table("Local constants of attention: a diagnostic, no bound", found.local)
    talk.say(f"Order {found.order}")


def _reasons(frame: Any) -> str:
    """Say why components have no bound."""
    without = frame[frame["kind"] == "none"]
    return "; ".join(
        f"no bound for {', '.join(names)}: {reason}" for reason, names in without.groupby("reason")["component"]
    )


def _about(provenance: Mapping[str, Any]) -> str:
    """Say how the numbers were obtained."""
    sides = " against ".join(str(provenance[side]) for side in ("source", "target") if side in provenance)
    return (
        f"convention {provenance['convention']}, {provenance['pairs']} pairs, {sides}; bound and mean: over blocks; "
        f"bounds hold on the tokens that the components got; slack: bound over largest measured rate; "
        f"seed {provenance['seed']}"
    )
