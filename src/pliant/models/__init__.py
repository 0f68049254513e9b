"""Names to models and their preprocessing, and models to folders: the only place that loads or saves weights."""

from pliant.models.loaded import Loaded, fingerprint, from_module
from pliant.models.loading import load
from pliant.models.saving import save

__all__ = ["Loaded", "fingerprint", "from_module", "load", "save"]
