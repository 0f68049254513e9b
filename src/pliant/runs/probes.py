"""Linear probes of a store: the reference line of its cells, one for each model and data set.

OUT/probes/<id>.json    scores of the probe
           <id>.lock    held by the process that computes it
"""

import hashlib
import json
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, JsonValue, field_validator

from pliant.errors import PliantError, StoreError
from pliant.runs.atomic import storing, write_atomically
from pliant.runs.config import CellConfig
from pliant.runs.record import Score
from pliant.runs.strict import FromList, Strict


class ProbeKey(Strict):
    """What a probe depends on: the fields of a cell that say which images go into which model.

    Attributes are those of `CellConfig`. Cells with the same key have one reference line.
    """

    model: str
    model_fingerprint: str | None = None
    data: str
    train: int | None = None
    validation: int | None = None
    test: int | None = None
    data_seed: int = 0
    skip_unreadable: bool = False
    image_size: int | None = None
    normalization: Literal["checkpoint", "imagenet"] = "checkpoint"

    @classmethod
    def of(cls, cell: CellConfig) -> Self:
        """Return the key of the probe that a cell is compared with."""
        return cls(**{name: getattr(cell, name) for name in cls.model_fields})

    @property
    def id(self) -> str:
        """16 hex digits that stand for this key."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class ProbeLine(Strict):
    """The linear probe of a pretrained model on a data set.

    Attributes:
        key: model and data.
        pooling: of the features, `mean` over tokens or the `cls` token.
        layer: whose output was probed.
        strength: inverse of the regularisation (C), chosen on the validation images.
        n_train: images that the classifier was fitted on.
        validation: score on the validation images; test on the test images, read once.
        seconds: it took.
        notes: what the user should be told.
        environment: versions, device, threads.

    Raises:
        StoreError: a key is unknown or missing, or its value cannot be.
    """

    failure: ClassVar[type[PliantError]] = StoreError

    key: ProbeKey
    pooling: str
    layer: str
    strength: float
    n_train: int
    validation: Score
    test: Score
    seconds: float
    notes: Annotated[tuple[str, ...], FromList] = ()
    environment: dict[str, JsonValue] = Field(default_factory=dict)

    @field_validator("key", mode="before")
    @classmethod
    def _key(cls, value: object) -> object:
        return _read(ProbeKey, value)

    @field_validator("validation", "test", mode="before")
    @classmethod
    def _score(cls, value: object) -> object:
        return _read(Score, value)

    def store(self, folder: Path | str) -> Path:
        """Write it into a store's folder.

        Raises:
            StoreError: it cannot be written.
        """
        path = probe_path(folder, self.key)
        with storing("make the folder", path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, self.to_json())
        return path


def probe_path(folder: Path | str, key: ProbeKey) -> Path:
    """Return where a store keeps a probe."""
    return Path(folder) / "probes" / f"{key.id}.json"


def read_probe(folder: Path | str, key: ProbeKey) -> ProbeLine | None:
    """Return a store's probe; None if it is not there, cannot be read, or is another key's."""
    try:
        line = ProbeLine.from_json(probe_path(folder, key).read_bytes())
    except (OSError, PliantError):
        return None
    return line if line.key == key else None


def read_probes(folder: Path | str, *, problems: list[str] | None = None) -> tuple[ProbeLine, ...]:
    """Return all probes of a store, in order of model and data.

    Files that cannot be read as one are left out, and named in `problems`.
    """
    lines = []
    for path in sorted((Path(folder) / "probes").glob("*.json")):
        try:
            lines.append(ProbeLine.from_json(path.read_bytes()))
        except (OSError, PliantError) as error:
            if problems is not None:
                said = " ".join(str(error).split())[:200]
                problems.append(
                    f"probes/{path.name} is no linear probe that can be read ({said}); the sweep makes it again."
                )
    return tuple(sorted(lines, key=lambda line: (line.key.model, line.key.data, line.key.id)))


def _read(kind: type[Strict], value: object) -> object:
    try:
        return kind(**value) if isinstance(value, dict) else value
    except PliantError as error:
        raise ValueError(str(error)) from None
