"""`pliant report`: one page to read, charts and tables."""

from pathlib import Path
from typing import Annotated

import typer

from pliant.cli.app import app
from pliant.cli.options import Json


@app.command()
def report(
    folder: Annotated[
        Path, typer.Argument(help="A store of runs, a folder of `pliant tune`, or the file of a measurement.")
    ] = Path("."),
    charts: Annotated[
        list[str] | None, typer.Option("--charts", help="Write each chart in this format, too: svg, png, pdf, html.")
    ] = None,
    tables: Annotated[bool, typer.Option("--tables", help="Write each table as Markdown, LaTeX and CSV, too.")] = False,
    json: Json = False,
) -> None:
    """Write what a folder of runs shows: one page that needs no network, charts and tables.

    Example: `pliant report sweep-run --charts svg --charts pdf --tables`
    """
    from pliant.cli.console import ConsoleTalk
    from pliant.reporting import report as library_report

    talk = ConsoleTalk(stderr=json)
    with talk.bar("Writing the report") as bar:
        page = library_report(folder, charts=charts or (), tables=tables, progress=bar)
    if json:
        from json import dumps

        beside = page.with_suffix("")
        files = sorted(str(p) for p in beside.iterdir()) if (charts or tables) and beside.is_dir() else []
        typer.echo(dumps({"page": str(page), "files": files}, indent=1))
        return
    talk.say(f"Written: {page}" + (f"; charts and tables in {page.with_suffix('')}" if charts or tables else ""))
