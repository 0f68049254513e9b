"""Writing a measurement with its provenance, and reading it back."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from pliant.errors import ConfigError, DataError
from pliant.measuring.measurement import COLUMNS, Measurement
from pliant.runs.atomic import write_file

_KEY = b"pliant"


def write_measurement(measurement: Measurement, path: Path) -> Path:
    """Write a measurement in the format that the ending names; a file of that name is replaced at once or not at all.

    Raises:
        ConfigError: an ending that names no format.
    """
    about = measurement.about()
    if path.suffix == ".parquet":
        table = pa.Table.from_pandas(measurement.frame, preserve_index=False)
        table = table.replace_schema_metadata(
            {**(table.schema.metadata or {}), _KEY: json.dumps(about, allow_nan=False).encode()}
        )
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        write_file(path, sink.getvalue().to_pybytes())
    elif path.suffix == ".json":
        write_file(path, measurement.to_json().encode())
    elif path.suffix == ".csv":
        write_file(path.with_suffix(".provenance.json"), json.dumps(about, indent=1, allow_nan=False).encode())
        write_file(path, measurement.frame.to_csv(index=False, float_format="%.17g").encode())
    else:
        raise ConfigError(f"{path.name}: expected a name that ends in .parquet, .csv or .json")
    return path


def read_measurement(path: str | Path) -> Measurement:
    """Read a measurement back.

    Raises:
        DataError: the file is no measurement.
    """
    path = Path(path)
    try:
        if path.suffix == ".parquet":
            table = pq.read_table(path)
            about = json.loads(table.schema.metadata[_KEY])
            frame = table.to_pandas()
        elif path.suffix == ".json":
            about = json.loads(path.read_text())
            frame = _table(about["components"])
        else:
            about = json.loads(path.with_suffix(".provenance.json").read_text())
            frame = _numbers(pd.read_csv(path, dtype=str, keep_default_na=False))
        heads, by_role, provenance = about.get("heads"), _table(about["by_role"]), dict(about["provenance"])
        _check(frame, COLUMNS)
        _check(by_role, ("role", "plasticity", "stderr", "ci_low", "ci_high"))
        return Measurement(frame, by_role, provenance, heads and _table(heads))
    except (OSError, AttributeError, KeyError, TypeError, ValueError, RecursionError, pa.ArrowException) as error:
        raise DataError(
            f"{path} is no measurement written by pliant ({error}); expected a .parquet, .csv or .json."
        ) from error


def _check(frame: pd.DataFrame, columns: Sequence[str]) -> None:
    """Refuse a table that is not one of rates: a column that is missing or no number, plasticity that is not finite."""
    missing = [name for name in columns if name not in frame.columns]
    if missing or frame.empty:
        raise ValueError(f"without {', '.join(missing)}" if missing else "without a row")
    text = [n for n in columns if n not in ("component", "role") and not pd.api.types.is_numeric_dtype(frame[n])]
    if text:
        raise ValueError(f"{', '.join(text)}: no numbers")
    if not np.isfinite(frame["plasticity"].to_numpy(dtype=np.float64)).all():
        raise ValueError("plasticity is not finite")


def _numbers(frame: pd.DataFrame) -> pd.DataFrame:
    """Read a table of text without losing a bit, as Python reads numbers."""
    text = {"component", "role"}
    whole = {"block", "depth", "n_source", "n_target", "n_pairs", "n_dropped"}
    return pd.DataFrame(
        {
            c: frame[c] if c in text else [int(v) if c in whole else float(v or "nan") for v in frame[c]]
            for c in frame.columns
        }
    )


def _table(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Build a table in which a missing number is NaN."""
    frame = pd.DataFrame(rows)
    text = [c for c in frame if all(isinstance(v, str) for v in frame[c])]
    return frame.astype({c: float for c in frame if c not in text and frame[c].dtype == object})
