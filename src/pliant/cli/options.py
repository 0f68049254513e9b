"""Options that several commands share, each defined once."""

from typing import Annotated

import typer

Model = Annotated[str, typer.Option("--model", "-m", help="bundled, a model folder, or a hub id (ORG/NAME).")]
Data = Annotated[
    str,
    typer.Option(
        "--data", "-d", help="digits, folder:PATH, fashion-mnist[:DIR], hub:ORG/NAME[:CONFIG], or a benchmark's name."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout; talk goes to stderr.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of everything that is drawn.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, mps.")]
