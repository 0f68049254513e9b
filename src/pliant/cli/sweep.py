"""`pliant sweep`: a grid of cells."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from pliant.cli.app import app
from pliant.cli.options import Json

Out = Annotated[Path | None, typer.Option("--out", "-o", help="Folder of the results; else pliant-sweep-RECIPE.")]
Workers = Annotated[
    int | None,
    typer.Option("--workers", "-w", min=1, help="Cells at a time. Left out: one; on a cluster, what it has room for."),
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", help="KEY=VALUE or KEY=VALUE,VALUE: of all cells, whatever the recipe says. Repeatable."),
]


@app.command()
def sweep(
    recipe: Annotated[str, typer.Argument(help="Name of a recipe (digits, paper, ...), or a YAML file.")],
    out: Out = None,
    engine: Annotated[str, typer.Option("--engine", help="local or ray.")] = "local",
    workers: Workers = None,
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="Of each worker. Left out: the cores are shared out.")
    ] = None,
    changes: Changes = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be run: cells, trained parameters, time.")
    ] = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Try cells again that failed before.")] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Successive halving: only the best cells are run to the end.")
    ] = False,
    save: Annotated[
        Literal["model", "delta"] | None,
        typer.Option("--save", help="Also keep each trained model, or only the tensors that training changed."),
    ] = None,
    address: Annotated[
        str | None, typer.Option("--address", help="Of a Ray cluster: auto, or HOST:PORT. Left out: start one here.")
    ] = None,
    gpus_per_cell: Annotated[
        float | None, typer.Option("--gpus-per-cell", min=0.0, help="Of each worker on a cluster; 0.5: two share one.")
    ] = None,
    scratch: Annotated[
        Path | None, typer.Option("--scratch", help="Folder that a cluster's machines share, for checkpoints.")
    ] = None,
    device: Annotated[
        Literal["auto", "cpu", "cuda", "mps"] | None, typer.Option("--device", help="Left out: the recipe's.")
    ] = None,
    json: Json = False,
) -> None:
    """Run a grid of cells, stopped and resumed at will; seeds are the recipe's (`--set seed=0,1`).

    Example: `pliant sweep digits --workers 2 --set seed=0 --out digits-sweep`
    """
    from pliant.cli.sweep_talk import print_plan, print_result, watching
    from pliant.sweeping import plan_sweep, read_changes
    from pliant.sweeping import sweep as library_sweep

    where = {"out": out, "engine": engine, "workers": workers, "threads": threads, "device": device, "prune": prune}
    changed = read_changes(changes or ())
    with watching(json=json) as (talk, listener):
        if dry_run:
            plan = plan_sweep(recipe, changes=changed, talk=talk, **where)  # type: ignore[arg-type]
            return print_plan(plan, json=json)
        result = library_sweep(
            recipe, changes=changed, retry_failed=retry_failed, save=save, address=address, gpus_per_cell=gpus_per_cell,
            scratch=scratch, listener=listener, talk=talk, **where,  # type: ignore[arg-type]
        )  # fmt: skip
    print_result(result, json=json)
    return None
