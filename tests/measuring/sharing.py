"""Run by `torchrun` in `test_processes.py`: measures in several ways and writes what each process found."""

import os
import sys
from pathlib import Path

import torch.distributed as dist

from families import sample
from pliant.errors import MeasurementError
from pliant.measuring import Measurement, measure

CASES: dict[str, dict] = {
    "insitu": {"convention": "insitu", "per_head": True},
    "shared": {"convention": "shared", "pairs": "matched"},
    "until": {"convention": "insitu", "until": 0.9},
}


def measured(case: str) -> Measurement:
    """Measure 5 passes of at most 4 items a side."""
    chosen = sample("timm VisionTransformer")
    options = CASES[case]
    source = chosen.inputs(17 if options.get("pairs") == "matched" else 20, 1)
    return measure(chosen.model(), source, chosen.inputs(17, 2), batch_size=4, **options)


def broken() -> str:
    """One process gets an image that is not finite; return what this one is told."""
    chosen = sample("timm VisionTransformer")
    items = chosen.inputs(8)
    items[6] = float("nan")  # in the second pass, which is the second process's
    try:
        measure(chosen.model(), items, batch_size=4)
    except MeasurementError as error:
        return str(error)
    return "no error"


def main(folder: Path) -> None:
    """Write each case's measurement, and the error, as seen by this process."""
    rank = os.environ["RANK"]
    for case in CASES:
        measured(case).save(folder / f"{case}-{rank}.json")
    (folder / f"error-{rank}.txt").write_text(broken())
    dist.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
