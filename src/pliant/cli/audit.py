"""`pliant audit`: what is wrong with a data set."""

from typing import Annotated

import typer

from pliant.cli.app import FAILED, app
from pliant.cli.options import Json


@app.command()
def audit(
    data: Annotated[str, typer.Argument(help="digits, folder:PATH, fashion-mnist[:DIR], hub:ORG/NAME.")] = "digits",
    json: Json = False,
) -> None:
    """List what is wrong with a data set: unreadable images, duplicates across splits, tiny classes, and so on.

    Exits with 1 if something stands against training on it.

    Example: `pliant audit folder:photos`
    """
    from pliant.cli.console import ConsoleTalk
    from pliant.data.audit import audit as library_audit

    talk = ConsoleTalk(stderr=json)
    with talk.bar(f"Looking at {data}") as bar:
        found = library_audit(data, progress=bar)
    if json:
        typer.echo(found.frame.to_json(orient="records", indent=1))
    elif len(found.frame):
        talk.table(f"{found.name}: {found.images:,} images", found.frame)
    verdict = "nothing stands against" if found.ok else "errors stand against"
    talk.say(f"{found.name}: {found.images:,} images, {len(found.frame)} findings; {verdict} training")
    if not found.ok:
        raise typer.Exit(FAILED)
