"""pliant: find out which components of a pretrained transformer bend, and train only those worth it.

    import pliant

    pliant.anatomy("bundled")                       # components, tensors, parameters
    pliant.measure("bundled", target="digits")      # plasticity
    pliant.bounds("bundled", target="digits")       # how far each component can bend
    pliant.tune("bundled", "folder:photos")         # the main job

The names below are the public ones; each is imported when it is first used, so `import pliant` is quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pliant.errors import PliantError
from pliant.terms import Preprocessing

if TYPE_CHECKING:
    from pliant.components import Anatomy, Component, Family
    from pliant.data.audit import audit
    from pliant.job import TuneResult, advise, probe, tune
    from pliant.landscapes import landscape
    from pliant.measuring import Measurement, measure
    from pliant.measuring.bounds import bounds
    from pliant.measuring.bounds_report import BoundsReport
    from pliant.measuring.subject import anatomy
    from pliant.models import Loaded, from_module
    from pliant.reporting import report
    from pliant.sweeping import SweepResult, sweep

_HOMES = {
    "Anatomy": "pliant.components",
    "BoundsReport": "pliant.measuring.bounds_report",
    "Component": "pliant.components",
    "Family": "pliant.components",
    "Loaded": "pliant.models",
    "Measurement": "pliant.measuring",
    "SweepResult": "pliant.sweeping",
    "TuneResult": "pliant.job",
    "advise": "pliant.job",
    "anatomy": "pliant.measuring.subject",
    "audit": "pliant.data.audit",
    "bounds": "pliant.measuring.bounds",
    "from_module": "pliant.models",
    "landscape": "pliant.landscapes",
    "measure": "pliant.measuring",
    "probe": "pliant.job",
    "report": "pliant.reporting",
    "sweep": "pliant.sweeping",
    "tune": "pliant.job",
}

__all__ = [
    "Anatomy",
    "BoundsReport",
    "Component",
    "Family",
    "Loaded",
    "Measurement",
    "PliantError",
    "Preprocessing",
    "SweepResult",
    "TuneResult",
    "advise",
    "anatomy",
    "audit",
    "bounds",
    "from_module",
    "landscape",
    "measure",
    "probe",
    "report",
    "sweep",
    "tune",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'pliant' has no attribute {name!r}; public names: {', '.join(__all__)}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
