"""The configuration of the main job."""

import json
from hashlib import sha256
from typing import Annotated, Any, Literal

from pydantic import Field

from pliant.runs import CellConfig
from pliant.runs.strict import Strict

Count = Annotated[int, Field(gt=0)]


class TuneConfig(Strict):
    """Everything that the outcome of `tune` depends on. See `tune` for what the fields mean."""

    model: str = "bundled"
    data: str = "digits"
    components: str = "auto"
    source: str | None = None
    budget: str | None = None
    train: Count | None = None
    validation: Count | None = None
    test: Count | None = None
    image_size: Count | None = None
    optimizer: Literal["sgd", "adamw"] = "sgd"
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    momentum: float | None = None
    weight_decay: float = 0.0
    warmup_steps: Annotated[int, Field(ge=0)] | None = None
    clip_norm: float | None = 1.0
    steps: Count = 300
    race_steps: Count = 60
    race_validation: Count = 1000
    batch_size: Count = 64
    accumulation: Count = 1
    eval_every: Count | None = None
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    augmentation: Literal["none", "flip", "crop", "flip-crop"] = "none"
    normalization: Literal["checkpoint", "imagenet"] = "checkpoint"
    measure_items: Count = 128
    energy_images: Count = 512
    skip_unreadable: bool = False
    seed: Annotated[int, Field(ge=0)] = 0

    @property
    def id(self) -> str:
        """Eight hex digits that stand for this configuration."""
        return sha256(json.dumps(self.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()[:8]

    def cell(self, **changes: Any) -> CellConfig:
        """Return the training cell of this job, with the fields that the job decides later in `changes`."""
        steps = int(changes.get("steps", self.steps))
        whole = steps == self.steps  # a trial of the race warms up in proportion
        fields: dict[str, Any] = {
            "model": self.model,
            "data": self.data,
            "train": self.train,
            "validation": self.validation,
            "test": self.test,
            "data_seed": self.seed,
            "skip_unreadable": self.skip_unreadable,
            "image_size": self.image_size,
            "optimizer": self.optimizer,
            "weight_decay": self.weight_decay,
            "warmup_steps": self.warmup_steps if whole and self.warmup_steps is not None else steps // 10,
            "clip_norm": self.clip_norm,
            "steps": steps,
            "batch_size": self.batch_size,
            "accumulation": self.accumulation,
            "eval_every": min(self.eval_every or max(1, steps // 10), steps),
            "precision": self.precision,
            "augmentation": self.augmentation,
            "normalization": self.normalization,
            "seed": self.seed,
        }
        if self.momentum is not None:
            fields["momentum"] = self.momentum
        return CellConfig(**{**fields, **changes})
