"""Writing a measurement with its provenance, and reading it back."""

import json
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from pliant.errors import ConfigError, DataError
from pliant.measuring.measurement import Measurement
from pliant.runs.atomic import write_atomically

_KEY = b"pliant"


def write_measurement(measurement: Measurement, path: Path) -> Path:
    """Write a measurement in the format that the ending names; a file of that name is replaced at once or not at all.

    Raises:
        ConfigError: an ending that names no format.
    """
    about = {"provenance": dict(measurement.provenance), "by_role": measurement.by_role.to_dict(orient="records")}
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        table = pa.Table.from_pandas(measurement.frame, preserve_index=False)
        table = table.replace_schema_metadata({**(table.schema.metadata or {}), _KEY: json.dumps(about).encode()})
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        write_atomically(path, sink.getvalue().to_pybytes())
    elif path.suffix == ".json":
        write_atomically(path, measurement.to_json().encode())
    elif path.suffix == ".csv":
        write_atomically(path.with_suffix(".provenance.json"), json.dumps(about, indent=1).encode())
        write_atomically(path, measurement.frame.to_csv(index=False, float_format="%.17g").encode())
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
            frame = pd.DataFrame(about["components"])
        else:
            about = json.loads(path.with_suffix(".provenance.json").read_text())
            frame = pd.read_csv(path)
        return Measurement(frame, pd.DataFrame(about["by_role"]), about["provenance"])
    except (OSError, KeyError, TypeError, ValueError, pa.ArrowException) as error:
        raise DataError(
            f"{path} is no measurement written by pliant ({error}); expected a .parquet, .csv or .json."
        ) from error
