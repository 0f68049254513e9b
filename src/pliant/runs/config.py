"""A cell: the frozen configuration of one training run, and the id that follows from it."""

import hashlib
import json
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import AfterValidator, Field, field_validator, model_validator

from pliant.runs.strict import FromList, Strict
from pliant.terms import Role, components_name, parse_components

SCHEMA = 1
"""Goes into every id. Raise it when the same fields come to mean another run."""

Method = Literal["components", "lora", "bitfit", "norms"]
LoraTarget = Literal["q", "k", "v", "o", "fc1", "fc2"]
Augmentation = Literal["none", "flip", "crop", "flip-crop"]

LORA_TARGETS: tuple[LoraTarget, ...] = get_args(LoraTarget)

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[
    float, Field(ge=0, allow_inf_nan=False), AfterValidator(lambda value: value + 0.0)
]  # -0.0 is 0.0
Count = Annotated[int, Field(gt=0)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Name = Annotated[str, Field(min_length=1, pattern=r"^[^\x00-\x1f]+$")]


class CellConfig(Strict):
    """Everything that determines the result of one training run, and nothing else.

    Device, number of workers and output folder are not here: the same cell on another machine is the same cell.
    A field that another field makes meaningless is filled in (never left to chance, so that one run has one id) and
    may not be set to anything else: `lora_rank` without `method="lora"` is an error, not ignored.

    Attributes:
        model: name of the model (`bundled`, a folder, a hub id).
        model_fingerprint: 16 hex digits; when given, a run with other weights under that name is refused.
        data: name of the data set (`digits`, `folder:PATH`, `cifar10-c-contrast`, ...).
        train: at most so many training images; `validation` and `test` likewise. None: all of them.
        data_seed: seed of splits and of those limits.
        skip_unreadable: leave out images that cannot be decoded instead of refusing the data set.
        image_size: pixels of a side of what the model is given; None: the checkpoint's own.
        method: `components` trains whole components; `lora`, `bitfit` (biases) and `norms` (all norms) are baselines.
        components: what `components` trains, in canonical form (`mha`, `mha+fc1`, `full`, `head`); None elsewhere.
        lora_rank: rank of LoRA's matrices (16); `lora_alpha` their scale (the rank), `lora_dropout` the rate of
            dropout before them (0), `lora_targets` the maps that get them (q and v). None without `lora`.
        optimizer: `sgd` or `adamw`.
        learning_rate: the schedule's highest.
        momentum: of SGD (0.9); 0 with AdamW.
        weight_decay: of the trained weight matrices of mha, fc1, fc2 and the classifier; never of norms, biases,
            LayerScale or embeddings.
        schedule: `cosine`: linear warm-up over `warmup_steps`, then a cosine to zero at `steps`.
        clip_norm: the gradient's norm is cut to this; None: not cut.
        steps: optimizer steps.
        batch_size: images per forward pass.
        accumulation: forward passes per optimizer step: `batch_size * accumulation` images each.
        eval_every: steps between two evaluations on the validation set.
        precision: of the forward pass; trained tensors are float32 in any case.
        augmentation: of training images: `flip` horizontally, `crop` (random resized), `flip-crop` both.
        crop_scale_min: smallest share of the image's area that `crop` takes (0.08); None without `crop`.
        normalization: mean and std of the images: the `checkpoint`'s own, or `imagenet`'s.
        seed: of the new classifier, the order of images, augmentation and dropout.
        read_test: whether the test images are read, once, at the end. False for runs that only help to choose.

    Raises:
        ConfigError: an unknown key (the nearest known one is named), a value of the wrong type or out of range, two
            fields that exclude each other.
        UnknownNameError: `components` names something that is no role.
    """

    model: Name = "bundled"
    model_fingerprint: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")] | None = None
    data: Name = "digits"
    train: Count | None = None
    validation: Count | None = None
    test: Count | None = None
    data_seed: Seed = 0
    skip_unreadable: bool = False
    image_size: Count | None = None
    method: Method = "components"
    components: str | None = None
    lora_rank: Count | None = None
    lora_alpha: Positive | None = None
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    lora_targets: Annotated[tuple[LoraTarget, ...], FromList, Field(min_length=1)] | None = None
    optimizer: Literal["sgd", "adamw"] = "sgd"
    learning_rate: Positive
    momentum: Annotated[NotNegative, Field(lt=1)] = 0.9
    weight_decay: NotNegative = 0.0
    schedule: Literal["cosine"] = "cosine"
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    clip_norm: Positive | None = 1.0
    steps: Count
    batch_size: Count = 32
    accumulation: Count = 1
    eval_every: Count
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    augmentation: Augmentation = "none"
    crop_scale_min: Annotated[float, Field(gt=0, le=1)] | None = None
    normalization: Literal["checkpoint", "imagenet"] = "checkpoint"
    seed: Seed = 0
    read_test: bool = True

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, fields: Any) -> Any:
        """Give the fields that depend on another field their value, where they were left out."""
        if not isinstance(fields, Mapping):
            return fields
        filled = dict(fields)
        if filled.get("method", "components") == "components":
            _default(filled, "components", "mha")
        elif filled["method"] == "lora":
            _default(filled, "lora_rank", 16)
            rank = filled["lora_rank"]
            _default(filled, "lora_alpha", rank)
            _default(filled, "lora_dropout", 0.0)
            _default(filled, "lora_targets", ("q", "v"))
        if filled.get("optimizer") == "adamw":
            filled.setdefault("momentum", 0.0)
        if "crop" in str(filled.get("augmentation")):
            _default(filled, "crop_scale_min", 0.08)
        return filled

    @field_validator("components")
    @classmethod
    def _canonical_components(cls, text: str | None) -> str | None:
        return None if text is None else components_name(parse_components(text))

    @field_validator("lora_targets")
    @classmethod
    def _canonical_targets(cls, targets: tuple[LoraTarget, ...] | None) -> tuple[LoraTarget, ...] | None:
        return None if targets is None else tuple(target for target in LORA_TARGETS if target in targets)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        mistakes = list(self._exclusions())
        if self.warmup_steps >= self.steps:
            mistakes.append(f"a warm-up of {self.warmup_steps} steps leaves none of the {self.steps} steps: shorten it")
        if self.eval_every > self.steps:
            mistakes.append(
                f"eval_every = {self.eval_every} is beyond the {self.steps} steps: nothing would be evaluated"
            )
        if mistakes:
            raise ValueError("; ".join(mistakes))
        return self

    def _exclusions(self) -> list[str]:
        """Name the fields that are set although another field makes them meaningless."""
        mistakes = []
        if self.method != "components" and self.components is not None:
            mistakes.append(f"components = {self.components!r} means nothing with method {self.method!r}: leave it out")
        lora = ("lora_rank", "lora_alpha", "lora_dropout", "lora_targets")
        for field in lora if self.method != "lora" else ():
            if getattr(self, field) is not None:
                mistakes.append(f"{field} means nothing with method {self.method!r}: leave it out, or set method: lora")
        if self.optimizer == "adamw" and self.momentum:
            mistakes.append(f"momentum = {self.momentum} means nothing with adamw: leave it out")
        if not self.crop and self.crop_scale_min is not None:
            mistakes.append(f"crop_scale_min means nothing with augmentation {self.augmentation!r}: leave it out")
        return mistakes

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles that are trained beside those always trained; () for the baselines, which choose tensors."""
        return () if self.components is None else parse_components(self.components)

    @property
    def variant(self) -> str:
        """What is trained, as one word for tables: `mha`, `full`, `lora-r16-q+v`, `bitfit`, `norms`."""
        if self.components is not None:
            return self.components
        if self.lora_targets is not None:
            return f"lora-r{self.lora_rank}-{'+'.join(self.lora_targets)}"
        return self.method

    @property
    def images_per_step(self) -> int:
        """Images that one optimizer step sees."""
        return self.batch_size * self.accumulation

    @property
    def flip(self) -> bool:
        """Whether training images are flipped at random."""
        return "flip" in self.augmentation

    @property
    def crop(self) -> bool:
        """Whether training images are cropped at random."""
        return "crop" in self.augmentation

    @cached_property
    def id(self) -> str:
        """16 hex digits that stand for this configuration: two cells with one id are one cell."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()[:16]

    @property
    def name(self) -> str:
        """The id behind a readable prefix; safe as the name of a folder on any file system."""
        parts = [_slug(self.model), _slug(self.data), _slug(self.variant), self.optimizer, f"{self.learning_rate:g}"]
        return "-".join([*parts, f"s{self.seed}", self.id])

    def canonical(self) -> str:
        """Write schema and fields in the one form that the id is taken from."""
        fields = {"schema": SCHEMA, **self.model_dump(mode="json")}
        return json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)

    def replace(self, **changes: Any) -> Self:
        """Return this cell with some fields changed, checked like a new one.

        Fields that were filled in because of one that changes (LoRA's, momentum, the crop) are filled in anew.

        Raises:
            ConfigError: the cell that comes out is not valid.
        """
        kept = self.model_dump()
        for governor, governed in GOVERNED.items():
            if governor in changes and changes[governor] != kept[governor]:
                for field in governed:
                    del kept[field]
        return type(self)(**{**kept, **changes})

    def differences(self, other: "CellConfig") -> list[str]:
        """List the fields in which two cells differ: `learning_rate: 0.1 here, 0.01 there`."""
        here, there = self.model_dump(mode="json"), other.model_dump(mode="json")
        return [f"{key}: {here[key]!r} here, {there[key]!r} there" for key in here if here[key] != there[key]]


GOVERNED = {
    "method": ("components", "lora_rank", "lora_alpha", "lora_dropout", "lora_targets"),
    "optimizer": ("momentum",),
    "augmentation": ("crop_scale_min",),
}
"""Fields whose meaning hangs on another field."""


def _default(fields: dict[str, Any], key: str, value: object) -> None:
    if fields.get(key) is None:
        fields[key] = value


def _slug(text: str, *, longest: int = 40) -> str:
    """Make a short folder-safe word of a model's or data set's name; what is lost is in the id.

    >>> _slug("google/vit-base-patch16-224-in21k"), _slug("folder:/home/me/My images/")
    ('vit-base-patch16-224-in21k', 'folder_My_images')
    """
    kind, colon, rest = text.partition(":")
    words = [kind, rest] if colon else [text]
    tails = [word.replace("\\", "/").rstrip("/").split("/")[-1] for word in words]
    return re.sub(r"[^A-Za-z0-9._+-]+", "_", "_".join(tail for tail in tails if tail)).strip("._+-")[:longest] or "x"
