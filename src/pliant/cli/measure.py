"""`pliant measure`: plasticity."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from pliant.cli.app import app
from pliant.cli.options import Device, Json, Model, Seed
from pliant.errors import ConfigError
from pliant.terms import Convention, PairMode


@app.command()
def measure(
    files: Annotated[list[Path] | None, typer.Argument(help="With --compare: two measurements saved before.")] = None,
    model: Model = "bundled",
    source: Annotated[str | None, typer.Option("--source", help="Data like that of pretraining (x).")] = None,
    target: Annotated[str, typer.Option("--target", "-d", "--data", help="The downstream data (y).")] = "digits",
    convention: Annotated[Convention, typer.Option("--convention", help="The paper's is shared.")] = "insitu",
    pairs: Annotated[PairMode, typer.Option("--pairs", help="all (x_i, y_j) of a pass, or (x_i, y_i).")] = "all",
    items: Annotated[int | None, typer.Option("--items", min=2, help="At most so many a side (128).")] = None,
    until: Annotated[str | None, typer.Option("--until", help="Go on until every role's error is below: 2%.")] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Items a side and pass.")] = 32,
    per_head: Annotated[bool, typer.Option("--per-head", help="Measure every attention head as well.")] = False,
    precision: Annotated[Literal["float32", "bfloat16"], typer.Option("--precision", help="Of the model.")] = "float32",
    blocks: Annotated[bool, typer.Option("--blocks", help="Print every block, not only the mean over blocks.")] = False,
    compare: Annotated[bool, typer.Option("--compare", help="Put two saved measurements side by side.")] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the table: .parquet, .csv or .json.")] = None,
    seed: Seed = 0,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Measure plasticity: how much each component changes when its input changes.

    Example: `pliant measure --model facebook/dinov2-small --source fashion-mnist --data folder:photos`

    Two measurements: `pliant measure before.parquet after.parquet --compare`
    """
    from pliant.cli.console import ConsoleTalk
    from pliant.cli.output import check_file
    from pliant.measuring import measure as library_measure
    from pliant.measuring.subject import pick_device

    talk = ConsoleTalk(stderr=json)
    if compare or files:
        return _compare(files or [], talk, compare=compare, json=json)
    check_file(out, ".parquet", ".csv", ".json")
    with talk.bar("Measuring") as bar:
        found = library_measure(
            model, source, target, convention=convention, pairs=pairs, items=items, until=_share(until), seed=seed,
            batch_size=batch_size, per_head=per_head, precision=precision, device=pick_device(device), progress=bar,
        )  # fmt: skip
    _show(found, talk, blocks=blocks, json=json)
    if out is not None:
        from pliant.reporting import report

        talk.say(f"Written to {found.save(out)}, {report(out)}")
    return None


def _share(text: str | None) -> float | None:
    """Read `2%` or `0.02`."""
    if text is None:
        return None
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise ConfigError(f"got --until {text!r}; expected a share such as 2% or 0.02") from None


def _show(found: Any, talk: Any, *, blocks: bool, json: bool) -> None:
    if json:
        typer.echo(found.to_json())
        return
    from pliant.cli.console import compact

    columns = ["plasticity", "stderr", "ci_low", "ci_high"]
    if blocks:
        talk.table("Plasticity by component", found.frame[["component", *columns, "max", "relative", "token_norm"]])
    if found.heads is not None:
        talk.table("Plasticity of attention heads", found.heads[["component", *columns, "max"]])
    table, same = compact(found.by_role[["role", *columns, "spread", "blocks", "n_pairs"]])
    talk.table("Plasticity by role", table, note="; ".join(filter(None, [_about(found.provenance), same])))


def _compare(files: list[Path], talk: Any, *, compare: bool, json: bool) -> None:
    from pliant.measuring.comparison import compare as library_compare

    if not compare or len(files) != 2:
        raise ConfigError(
            f"got {len(files)} files{'' if compare else ' without --compare'}; expected two saved measurements: "
            "pliant measure A B --compare"
        )
    found = library_compare(files[0], files[1])
    if json:
        typer.echo(found.to_json())
        return
    talk.table(f"{files[0].name} (a) and {files[1].name} (b)", found.by_role)
    for note in found.notes:
        talk.say(f"Note: {note}")


def _about(provenance: Mapping[str, Any]) -> str:
    """Say how the numbers were obtained."""
    sides = " against ".join(str(provenance[side]) for side in ("source", "target") if side in provenance)
    return (
        f"convention {provenance['convention']}, {provenance['pairs']} pairs, {sides}; mean over blocks with its 95 % "
        f"interval over items; spread: standard deviation over blocks; seed {provenance['seed']}"
    )
