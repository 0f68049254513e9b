"""`pliant anatomy`: the table of components."""

from typing import Annotated

import typer

from pliant.cli.app import app
from pliant.cli.options import Json


@app.command()
def anatomy(
    model: Annotated[str, typer.Argument(help="bundled, a model folder, or a hub id (ORG/NAME).")] = "bundled",
    tensors: Annotated[bool, typer.Option("--tensors", help="List the tensors of every component.")] = False,
    json: Json = False,
) -> None:
    """Show a model's components: tensors, parameters, share.

    Example: `pliant anatomy facebook/dinov2-small`
    """
    from pliant.cli.console import ConsoleTalk
    from pliant.components import find_components
    from pliant.models import load

    found = find_components(load(model).model)
    frame = found.frame
    if tensors or json:
        names = {c.id: list(c.parameters) for c in found.components}
        frame = frame.assign(names=frame["component"].map(names))
    if json:
        typer.echo(frame.to_json(orient="records", indent=1))
        return
    if tensors:
        frame = frame.assign(names=frame["names"].map("\n".join))
    talk = ConsoleTalk(stderr=False)
    note = "; ".join(f"tied, counted once: {' = '.join(group)}" for group in found.tied)
    talk.table(f"{model}: {found.family.name}, {len(found.blocks)} blocks", frame, note=note)
    talk.say(f"{frame['parameters'].sum():,} parameters in {frame['tensors'].sum()} tensors, each in one component")
