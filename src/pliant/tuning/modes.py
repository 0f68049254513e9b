"""Evaluation mode that lasts: frozen modules ignore every later `train()` call until they are released."""

from collections.abc import Iterable

from torch import nn
from torch.nn.modules.batchnorm import _NormBase


def modules_to_train(model: nn.Module, chosen: Iterable[nn.Parameter]) -> set[nn.Module]:
    """Return the modules that may be in training mode when only `chosen` parameters are trained.

    A module with a chosen parameter in it may. One without parameters (dropout, drop-path) follows the nearest module
    around it that has some, and only if all of those are chosen: dropout belongs to the part that it sits in. So does a
    norm with running statistics, which would otherwise move while half of it is frozen.
    """
    wanted = {id(p) for p in chosen}
    whole: dict[str, bool] = {}
    active: set[nn.Module] = set()
    for name, module in model.named_modules():
        inside = [id(p) in wanted for p in module.parameters()]
        # A parent comes before its children, so its answer is already known; the model itself has no parent.
        whole[name] = all(inside) if inside else whole.get(name.rpartition(".")[0], False) if name else False
        if whole[name] or (any(inside) and not isinstance(module, _NormBase)):
            active.add(module)
    return active


def keep_in_evaluation(modules: Iterable[nn.Module]) -> None:
    """Make modules report `training == False` whatever is called or assigned, until `release`."""
    for module in modules:
        module.__class__ = _kept(type(module))


def release(modules: Iterable[nn.Module]) -> None:
    """Undo `keep_in_evaluation`; the modules are back in the mode that they were found in."""
    for module in modules:
        module.__class__ = type(module).__mro__[1]


_classes: dict[type, type] = {}


def _kept(kind: type[nn.Module]) -> type[nn.Module]:
    """Derive a class of the same name whose instances cannot leave evaluation mode.

    A property wins over the instance's own attribute, which keeps the mode that the module was found in; a subclass
    keeps `isinstance` true, and the name is what tables of families match.
    """
    if kind not in _classes:
        training = property(lambda self: False, lambda self, value: None)
        names = {"train": _stay, "training": training, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
        _classes[kind] = type(kind.__name__, (kind,), names)
    return _classes[kind]


def _stay(self: nn.Module, mode: bool = True) -> nn.Module:
    return self
