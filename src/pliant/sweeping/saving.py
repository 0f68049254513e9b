"""What was trained, kept beside a cell's record for those who ask for it."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from pliant.errors import ConfigError
from pliant.runs import CellConfig

if TYPE_CHECKING:  # torch is imported when it is needed
    from pliant.models import Loaded

Save = Literal["model", "delta"]
"""`model`: a folder in Hugging Face format. `delta`: the tensors that differ from the pretrained model's, in a file."""

DELTA = "delta.safetensors"


def check_save(save: str | None, *, engine: str) -> Save | None:
    """Read what is to be saved.

    Raises:
        ConfigError: there is no such thing, or the cells run where the store is not at hand.
    """
    known: dict[str | None, Save | None] = {None: None, **{kind: kind for kind in get_args(Save)}}
    if save not in known:
        raise ConfigError(f"got save={save!r}; expected {' or '.join(get_args(Save))}")
    if save is not None and engine != "local":
        raise ConfigError(f"the engine {engine} brings back records, not weights: save={save!r} needs engine local")
    return known[save]


class Pretrained:
    """What a model's tensors were before training: hashes, not copies."""

    def __init__(self, loaded: "Loaded") -> None:
        """Hash all tensors."""
        from pliant.tuning.guards import digests

        self._loaded = loaded
        self._before = digests(loaded.model.state_dict())

    def save(self, save: Save, cell: CellConfig, folder: Path) -> Path:
        """Save the model as it is now, or what differs in it.

        Raises:
            StoreError: it cannot be written.
            ModelError: the model is of a kind that cannot be saved in Hugging Face format.
        """
        from pliant.models import save as save_model
        from pliant.tuning.batches import preprocessing_of
        from pliant.tuning.delta import save_delta
        from pliant.tuning.guards import digests

        model = self._loaded.model
        if save == "model":
            return save_model(model, folder / "model", preprocessing=preprocessing_of(cell, self._loaded))
        after = model.state_dict()
        changed = {name: hashed for name, hashed in digests(after).items() if self._before.get(name) != hashed}
        return save_delta({name: after[name] for name in changed}, folder / DELTA)
