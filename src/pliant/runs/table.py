"""Records as one tidy table, for statistics and reports."""

from collections.abc import Iterable

import pandas as pd

from pliant.runs.config import CellConfig
from pliant.runs.record import Record

SCORE = ("accuracy", "stderr", "ci_low", "ci_high", "macro_accuracy")
OUTCOME = (
    "best_step", "validation_accuracy", "n_train", "n_validation", "trained_parameters", "total_parameters",
    "frozen_tensors_unchanged", "trained_tensors_moved", "dtype", "seconds", "peak_memory_bytes", "saved_bytes",
    "diverged_at", "error",
)  # fmt: skip
INTEGERS = (
    "train", "validation", "test", "data_seed", "image_size", "lora_rank", "warmup_steps", "steps", "batch_size",
    "accumulation", "eval_every", "seed", "test_n", "test_correct", "best_step", "n_train", "n_validation",
    "trained_parameters", "total_parameters", "frozen_tensors_unchanged", "trained_tensors_moved",
    "peak_memory_bytes", "saved_bytes", "diverged_at",
)  # fmt: skip
FLOATS = (
    "learning_rate", "momentum", "weight_decay", "clip_norm", "crop_scale_min", "lora_alpha", "lora_dropout",
    "validation_accuracy", "seconds", *(f"test_{name}" for name in SCORE),
)  # fmt: skip


def record_table(records: Iterable[Record]) -> pd.DataFrame:
    """Tabulate records, one row each.

    Columns: `id`, `name`, `variant` (what was trained, in one word), `status`, every field of the cell by its own
    name, `test_n`, `test_correct`, `test_accuracy`, `test_stderr`, `test_ci_low`, `test_ci_high`,
    `test_macro_accuracy`, and the record's single values (`OUTCOME`). Without a value: NA. The cell's limits on
    images, `train`, `validation` and `test`, are named `train_limit` and so on.

    Diverged and failed cells are rows like others: leave them out by `status`, never without saying how many.
    """
    rows = [_row(record) for record in records]
    columns = ["id", "name", "variant", "status", *(_limit(field) for field in CellConfig.model_fields)]
    columns += ["test_n", "test_correct", *(f"test_{name}" for name in SCORE), *OUTCOME]
    table = pd.DataFrame(rows, columns=columns)
    types = {_limit(name): "Int64" for name in INTEGERS} | dict.fromkeys(FLOATS, "float64")
    return table.astype(types)


def _limit(field: str) -> str:
    """Name a column: a limit on images must not be taken for a score of that set."""
    return f"{field}_limit" if field in ("train", "validation", "test") else field


def _row(record: Record) -> dict[str, object]:
    cell = record.cell
    row: dict[str, object] = {"id": cell.id, "name": cell.name, "variant": cell.variant, "status": record.status}
    row |= {_limit(field): value for field, value in cell.model_dump().items()}
    row["lora_targets"] = None if cell.lora_targets is None else "+".join(cell.lora_targets)
    if record.test is not None:
        row |= {f"test_{name}": value for name, value in record.test.model_dump().items()}
    return row | {name: getattr(record, name) for name in OUTCOME}
