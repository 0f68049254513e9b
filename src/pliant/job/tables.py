"""The tables that the main job shows."""

import pandas as pd

from pliant.advising.race import Race
from pliant.components import Anatomy
from pliant.job.result import TuneResult
from pliant.runs import Score


def by_role_table(anatomy: Anatomy) -> pd.DataFrame:
    """Sum the table of components over blocks: role, blocks, tensors, parameters, share."""
    frame = anatomy.frame
    grouped = frame.groupby("role", sort=False)
    table = grouped.agg(
        blocks=("block", "count"), tensors=("tensors", "sum"), parameters=("parameters", "sum"), share=("share", "sum")
    )
    return table.reset_index()


def race_table(race: Race) -> pd.DataFrame:
    """Return the best trial of each candidate, best first, the chosen one marked."""
    rows = [
        {
            "components": t.components,
            "parameters": t.parameters,
            "learning rate": t.learning_rate,
            "validation": t.validation_accuracy,
            "stderr": t.stderr,
            "": "chosen" if t.components == race.chosen else "tie" if t.components in race.tied else "",
        }
        for t in race.best
    ]
    return pd.DataFrame(rows)


def summary_table(result: TuneResult) -> pd.DataFrame:
    """Return the closing table: linear probe and chosen set, side by side."""
    record = result.record
    trained, total = record.trained_parameters or 0, record.total_parameters or 1
    probe = {"method": "linear probe", "trained": "classifier only", **_accuracy(result.advice.probe.test), "time": ""}
    chosen = {
        "method": result.chosen,
        "trained": f"{trained:,} ({trained / total:.1%})",
        **_accuracy(result.test),
        "time": f"{record.seconds or 0.0:.0f} s",
    }
    return pd.DataFrame([probe, chosen])


def _accuracy(score: Score) -> dict[str, str]:
    return {"test accuracy": f"{score.accuracy:.1%}", "95 % interval": f"{score.ci_low:.1%} to {score.ci_high:.1%}"}


def summary_note(result: TuneResult) -> str:
    """Say how the numbers of the closing table were obtained."""
    record = result.record
    return (
        f"correct / all of {result.test.n} test images, read once, after the choice; 95 % interval: Wilson; one seed "
        f"({record.cell.seed}); {record.frozen_tensors_unchanged} frozen tensors byte-identical, "
        f"{record.trained_tensors_moved} trained ones moved; {result.seconds:.0f} s in all"
    )
