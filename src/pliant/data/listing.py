"""What stands between a name and decoded images: what was asked for, and a data set that is listed."""

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral

from pliant.data.sets import ImageSet
from pliant.errors import ConfigError


@dataclass(frozen=True)
class Request:
    """What the caller asked for beside the name: at most so many images per split, and the seed of the splits."""

    train: int | None = None
    validation: int | None = None
    test: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what is no number of images, and no seed."""
        for name in ("train", "validation", "test"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, Integral) or value < 1):
                raise ConfigError(f"{name} is {value!r}; expected a whole number of images from 1 on, or None for all")
        if not isinstance(self.seed, Integral) or self.seed < 0:
            raise ConfigError(f"seed is {self.seed!r}; expected a whole number from 0 on")


@dataclass(frozen=True)
class Listing:
    """A data set whose images are listed but not decoded, as its source splits it; None where it has no such split."""

    name: str
    train: ImageSet
    validation: ImageSet | None = None
    test: ImageSet | None = None
    notes: tuple[str, ...] = ()
    measuring_only: bool = False


@dataclass(frozen=True)
class Source:
    """A kind of data set: how its name is written, and how it is listed.

    Attributes:
        form: as the user writes it, such as "folder:PATH".
        about: one line for the list of names.
        lists: from what follows the colon (None without one) and the request to a listing.
    """

    form: str
    about: str
    lists: Callable[[str | None, Request], Listing]
